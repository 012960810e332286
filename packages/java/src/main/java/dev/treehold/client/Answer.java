package dev.treehold.client;

import java.net.http.HttpHeaders;
import java.util.OptionalLong;

/** An answer with a status from 200 to 299. */
record Answer(String request, int status, HttpHeaders headers, String text) {
    /** Reads the body as an object. */
    Json.Obj object() {
        try {
            if (Json.parse(text) instanceof Json.Obj object) {
                return object;
            }
            throw unreadable("is not a JSON object", null);
        } catch (JsonSyntaxException cause) {
            throw unreadable("is not JSON", cause);
        }
    }

    /** Reads a whole number of at least {@code least} from the body. */
    long number(Json.Obj object, String name, long least) {
        Json value = object.get(name).orElse(Json.Null.NULL);
        if (value.plain() instanceof Long number && number >= least) {
            return number;
        }
        throw unreadable("has no number `" + name + "` of at least " + least, null);
    }

    String string(Json.Obj object, String name) {
        if (object.get(name).orElse(Json.Null.NULL) instanceof Json.Str string) {
            return string.value();
        }
        throw unreadable("has no string `" + name + "`", null);
    }

    /** Reads a string that may be null or absent. */
    String optionalString(Json.Obj object, String name) {
        Json value = object.get(name).orElse(Json.Null.NULL);
        return value.equals(Json.Null.NULL) ? null : string(object, name);
    }

    /** Reads where the next page starts; null at the end. A server that names the same page again would have the caller read for ever. */
    String next(Json.Obj page, String after) {
        String next = optionalString(page, "next");
        if (next != null && next.equals(after)) {
            throw unreadable("names itself as the next page", null);
        }
        return next;
    }

    boolean bool(Json.Obj object, String name) {
        if (object.get(name).orElse(Json.Null.NULL) instanceof Json.Bool bool) {
            return bool.value();
        }
        throw unreadable("has no boolean `" + name + "`", null);
    }

    Json.Arr array(Json.Obj object, String name) {
        if (object.get(name).orElse(Json.Null.NULL) instanceof Json.Arr array) {
            return array;
        }
        throw unreadable("has no array `" + name + "`", null);
    }

    /** Returns the version that the answer's tag names. */
    long tag() {
        OptionalLong version = headers.firstValue("etag").map(Transport::version).orElse(OptionalLong.empty());
        if (version.isEmpty() || version.getAsLong() < 1) {
            throw unreadable("has no tag with a version", null);
        }
        return version.getAsLong();
    }

    TreeholdException unreadable(String problem, Throwable cause) {
        String message = "the answer to " + request + " " + problem + "; check the address and the version of the server";
        return TreeholdException.of(new TreeholdException.Facts(
                "corrupt", message, status, !request.startsWith("GET "), OptionalLong.empty(), null, request, cause));
    }
}
