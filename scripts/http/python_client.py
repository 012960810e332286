"""Files over HTTP, with a client that openapi-python-client generated from /openapi.json: python_client.py BASE [TOKEN]"""

import sys
from io import BytesIO

from treehold_client import AuthenticatedClient, Client
from treehold_client.api.files import apply, edit_file, grep_by, read_file, write_file
from treehold_client.api.threads import make_checkpoint
from treehold_client.api.tools import call_tool
from treehold_client.models import ApplyRequest, CallToolBody, CaseMode, Changed, Edit, GrepRequest, NotesRequest, PatchRequest, Problem
from treehold_client.models import WriteChange
from treehold_client.types import File

base, token = sys.argv[1], sys.argv[2:]
client = AuthenticatedClient(base, token[0]) if token else Client(base)
path = "memories/python.md"

# Write a file. The response has its path and size; the tag is in the headers.
written = write_file.sync(path, client=client, body=File(BytesIO(b"the theme colour is blue\n")), idempotency_key="python-1")
assert isinstance(written, Changed) and written.path == "/memories/python.md"

# Read it with its tag. A second read with the tag transfers nothing.
read = read_file.sync_detailed(path, client=client)
tag = read.headers["etag"]
assert read.parsed.payload.read() == b"the theme colour is blue\n"
assert read_file.sync_detailed(path, client=client, if_none_match=tag).status_code == 304

# Edit it if it still has that version.
green = PatchRequest(edits=[Edit(old="blue", new="green")])
edited = edit_file.sync(path, client=client, body=green, if_match=tag)
assert isinstance(edited, Changed) and edited.replacements == 1

# A late writer with the old tag is refused and overwrites nothing.
late = write_file.sync_detailed(path, client=client, body=File(BytesIO(b"late")), if_match=tag)
assert late.status_code == 412 and isinstance(late.parsed, Problem) and late.parsed.code == "conflict"

# Find it.
found = grep_by.sync(client=client, body=GrepRequest(pattern="GREEN", path="/memories", case=CaseMode.INSENSITIVE))
assert [(file.path, file.lines[0].text) for file in found.files] == [("/memories/python.md", "the theme colour is green")], found

# Make several changes at once in a separate thread, and a checkpoint.
write = WriteChange(operation="write", path="/plan.md", content="1. ask\n")
applied = apply.sync(client=client, body=ApplyRequest(changes=[write]), treehold_thread="python")
assert applied.changed[0].created
checkpoint = make_checkpoint.sync("python", client=client, body=NotesRequest(label="asked"))
assert checkpoint.label == "asked"

# Call a tool as a model would.
arguments = CallToolBody()
arguments.additional_properties = {"path": "/plan.md"}
output = call_tool.sync("read_file", client=client, body=arguments, treehold_thread="python")
assert not output.is_error and "1. ask" in output.text
print("python:", output.text.strip())
