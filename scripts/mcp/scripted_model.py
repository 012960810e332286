"""A Messages API that plays a script: each turn of the model is the next tool call of the script, and the results are recorded.

Usage: scripted_model.py SCRIPT.json TOLD.json; prints its port. SCRIPT is a list of {"name", "input"}; TOLD receives the list of results
that the client sent, as the model would read them.
"""

import http.server
import json
import sys
import threading

script = json.load(open(sys.argv[1]))
told = []
lock = threading.Lock()


def text_of(content):
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if "messages" not in self.path or "count_tokens" in self.path:
            return self.answer(b'{"input_tokens": 1}', "application/json")
        offered = {tool.get("name") for tool in request.get("tools", [])}
        if not any(name.startswith("mcp__") for name in offered):
            # Not part of the conversation, such as a request for a title.
            return self.play(request, [{"type": "text", "text": "ok"}])
        with lock:
            results = [block for message in request["messages"] if isinstance(message["content"], list) for block in message["content"] if block.get("type") == "tool_result"]
            by_id = {result["tool_use_id"]: result for result in results}
            for number in range(len(script)):
                if len(told) == number and f"toolu_{number}" in by_id:
                    result = by_id[f"toolu_{number}"]
                    told.append({"name": script[number]["name"], "text": text_of(result.get("content", "")), "is_error": bool(result.get("is_error"))})
            json.dump(told, open(sys.argv[2], "w"))
            step = len(told)
        if step < len(script):
            block = {"type": "tool_use", "id": f"toolu_{step}", "name": script[step]["name"], "input": script[step]["input"]}
            return self.play(request, [block])
        return self.play(request, [{"type": "text", "text": "finished"}])

    def play(self, request, blocks):
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": request.get("model", "m"), "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        stop = "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn"
        if not request.get("stream"):
            return self.answer(json.dumps({**message, "content": blocks, "stop_reason": stop}).encode(), "application/json")
        events = [("message_start", {"message": message})]
        for index, block in enumerate(blocks):
            if block["type"] == "tool_use":
                start, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            else:
                start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
            events += [("content_block_start", {"index": index, "content_block": start}), ("content_block_delta", {"index": index, "delta": delta}), ("content_block_stop", {"index": index})]
        events += [("message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 1}}), ("message_stop", {})]
        body = "".join(f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n" for name, data in events)
        return self.answer(body.encode(), "text/event-stream")

    def answer(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(server.server_address[1], flush=True)
server.serve_forever()
