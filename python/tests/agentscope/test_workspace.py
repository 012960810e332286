"""agentscope's workspace on a tree, alone and with another process in between."""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from agentscope.mcp import HttpMCPConfig, MCPClient
from agentscope.message import Base64Source, DataBlock, TextBlock, ToolResultBlock, URLSource, UserMsg
from agentscope.tool import LocalBackend
from agentscope.workspace import WorkspaceBase

import treehold
from treehold.agentscope import TreeholdWorkspace

SKILL = "---\nname: pdf\ndescription: Reads PDF files.\n---\nUse {tool}.\n"

Two = tuple[TreeholdWorkspace, TreeholdWorkspace]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    """Two workspaces of processes that share a store, as far as one process can tell."""
    url = f"sqlite:{tmp_path / 'files.db'}"
    trees = [treehold.StoreBackend(treehold.Store.open(url), ("files", "ann")) for _ in range(2)]
    async with TreeholdWorkspace(trees[0]) as one, TreeholdWorkspace(trees[1]) as other:
        yield one, other


@pytest.fixture
async def workspace() -> AsyncIterator[TreeholdWorkspace]:
    async with TreeholdWorkspace(treehold.StateBackend()) as workspace:
        yield workspace


def server(name: str) -> MCPClient:
    return MCPClient(name=name, is_stateful=False, mcp_config=HttpMCPConfig(url="http://127.0.0.1:9/mcp"))


def skill_of(directory: Path, name: str = "pdf") -> Path:
    (directory / name / "scripts").mkdir(parents=True)
    (directory / name / "SKILL.md").write_text(SKILL)
    (directory / name / "scripts" / "read.py").write_bytes(b"print()\n")
    return directory / name


def archive(format: Literal["zip", "tar", "tar.gz"], files: dict[str, bytes | str]) -> bytes:
    """Makes an archive. A text is the target of a link."""
    buffer = io.BytesIO()
    if format == "zip":
        with zipfile.ZipFile(buffer, "w") as zipped:
            for name, content in files.items():
                info = zipfile.ZipInfo(name)
                if isinstance(content, str):
                    info.external_attr = 0o120777 << 16
                zipped.writestr(info, content)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz" if format == "tar.gz" else "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


async def stream(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 100):
        yield content[start : start + 100]


def test_workspace_implements_everything_that_the_interface_leaves_open() -> None:
    abstract = [name for name, member in vars(WorkspaceBase).items() if getattr(member, "__isabstractmethod__", False)]
    assert len(abstract) >= 5
    # What would run Python in a sandbox, which a tree is not, or is empty by default.
    for name in [*abstract, "reset", "_equip_partition", "add_skill", "add_skill_archive", "_setup_skills"]:
        assert getattr(TreeholdWorkspace, name) is not getattr(WorkspaceBase, name), name
        ours, theirs = inspect.signature(getattr(TreeholdWorkspace, name)), inspect.signature(getattr(WorkspaceBase, name))
        assert list(ours.parameters) == list(theirs.parameters), name


async def test_bash_is_offered_with_a_shell_only(workspace: TreeholdWorkspace) -> None:
    names = ["Edit", "Glob", "Grep", "Read", "Write"]
    assert [tool.name for tool in await workspace.list_tools()] == names
    with_shell = TreeholdWorkspace(workspace.tree, shell=LocalBackend())
    assert [tool.name for tool in await with_shell.list_tools()] == ["Bash", *names]
    assert "/workspace/skills/" in await workspace.get_instructions()


async def test_context_of_two_processes_at_once_is_all_kept(two: Two) -> None:
    async def offload(number: int) -> str:
        return await two[number % 2].offload_context("s", [UserMsg(id=f"m{number}", name="u", content=f"text {number}")])

    paths = await asyncio.gather(*(offload(number) for number in range(8)))
    assert set(paths) == {"/workspace/sessions/s/context.jsonl"}
    lines = two[0].tree.read_text(paths[0]).splitlines()
    assert sorted(line.partition('"text ')[2][0] for line in lines) == [str(number) for number in range(8)]


async def test_tool_results_of_one_id_get_files_of_their_own(two: Two) -> None:
    image = DataBlock(source=Base64Source(media_type="image/png", data=base64.b64encode(b"png").decode()))

    async def offload(number: int) -> str:
        return await two[number].offload_tool_result("s", ToolResultBlock(id="c", name="t", output=[TextBlock(text=str(number)), image]))

    paths = await asyncio.gather(offload(0), offload(1))
    assert sorted(paths) == ["/workspace/sessions/s/tool_result-c(1).txt", "/workspace/sessions/s/tool_result-c.txt"]
    for number, path in enumerate(paths):
        assert two[0].tree.read_text(path).startswith(f"{number}<data url='workspace:///data/")
    [stored] = two[1].tree.ls("/workspace/data").entries
    assert two[1].tree.read_bytes(stored.path) == b"png"
    block = await two[0].offload_data_block(image)
    assert isinstance(block.source, URLSource) and str(block.source.url).endswith(stored.name)


async def test_mcp_servers_that_two_processes_declare_at_once_are_both_there(two: Two) -> None:
    await asyncio.gather(*(two[number % 2].add_mcp(server(f"m{number}"), agent_id="a", session_id="s") for number in range(6)))
    for workspace in two:
        assert sorted(client.name for client in await workspace.list_mcps(agent_id="a", session_id="s")) == [f"m{n}" for n in range(6)]
        assert await workspace.list_mcps(agent_id="a", session_id="other") == []
    with pytest.raises(ValueError, match="already"):
        await two[0].add_mcp(server("m5"), agent_id="a", session_id="s")
    await two[0].remove_mcp("m5", agent_id="a", session_id="s")
    await two[0].remove_mcp("none", agent_id="a", session_id="s")
    assert "m5" not in [client.name for client in await two[1].list_mcps(agent_id="a", session_id="s")]
    await two[1].add_mcp(server("kept"), agent_id="a", session_id="t")
    await two[0].offload_context("s", [UserMsg(name="u", content="x")])
    await two[0].purge_session(agent_id="a", session_id="s")
    assert await two[1].list_mcps(agent_id="a", session_id="s") == []
    assert [client.name for client in await two[0].list_mcps(agent_id="a", session_id="t")] == ["kept"]
    assert not two[0].tree.exists("/workspace/sessions/s")


async def test_removed_default_mcp_server_stays_removed() -> None:
    tree = treehold.StateBackend()
    async with TreeholdWorkspace(tree, default_mcps=[server("default")]) as one:
        assert [client.name for client in await one.list_mcps(session_id="s")] == ["default"]
        await one.remove_mcp("default", session_id="s")
    async with TreeholdWorkspace(tree, default_mcps=[server("default")]) as other:
        assert await other.list_mcps(session_id="s") == []
        assert [client.name for client in await other.list_mcps(session_id="t")] == ["default"]


async def test_each_agent_has_its_own_copy_of_the_skills_given(tmp_path: Path) -> None:
    tree = treehold.StateBackend()
    paths = [str(skill_of(tmp_path))]
    async with TreeholdWorkspace(tree, skill_paths=paths) as workspace:
        [skill] = await workspace.list_skills(agent_id="a")
        assert (skill.name, skill.dir) == ("pdf", "/workspace/skills/a/pdf")
        assert tree.read_bytes("/workspace/skills/a/pdf/scripts/read.py") == b"print()\n"
        await workspace.remove_skill("pdf", agent_id="a")
    async with TreeholdWorkspace(tree, skill_paths=paths) as workspace:
        assert await workspace.list_skills(agent_id="a") == []
        assert [skill.name for skill in await workspace.list_skills(agent_id="b")] == ["pdf"]
        await workspace.purge_agent(agent_id="b")
        await workspace.reset()
        assert await workspace.list_skills(agent_id="b") == []
        assert [entry.path for entry in tree.glob("**/*", "/workspace", hidden=True).entries if not entry.is_dir] == []


async def test_skill_of_this_machine_is_installed_whole_or_refused(workspace: TreeholdWorkspace, tmp_path: Path) -> None:
    skill = skill_of(tmp_path)
    await workspace.add_skill(str(skill), agent_id="a")
    assert [found.markdown.strip() for found in await workspace.list_skills(agent_id="a")] == ["Use {tool}."]
    with pytest.raises(ValueError, match="already"):
        await workspace.add_skill(str(skill), agent_id="a")
    (skill / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="passwords"):
        await workspace.add_skill(str(skill), agent_id="b")
    with pytest.raises(ValueError, match="SKILL.md"):
        await workspace.add_skill(str(tmp_path), agent_id="b")
    with pytest.raises(ValueError):
        await workspace.add_skill(str(skill), agent_id="../a")
    small = TreeholdWorkspace(workspace.tree, skill_bytes_max=10)
    with pytest.raises(treehold.TooLarge, match="skill_bytes_max"):
        await small.add_skill(str(skill), agent_id="c")
    assert await workspace.list_skills(agent_id="b") == await workspace.list_skills(agent_id="c") == []


@pytest.mark.parametrize("format", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("root", ["", "folder/"])
async def test_skill_of_an_archive_is_installed_under_a_free_name(
    format: Literal["zip", "tar", "tar.gz"], root: str, workspace: TreeholdWorkspace
) -> None:
    content = archive(format, {f"{root}SKILL.md": SKILL.encode(), f"{root}a/b.txt": b"x", "other.txt": b"y"})
    for _ in range(2):
        await workspace.add_skill_archive(stream(content), format, "pdf", agent_id="a")
    assert sorted(skill.dir for skill in await workspace.list_skills(agent_id="a")) == ["/workspace/skills/a/pdf", "/workspace/skills/a/pdf-1"]
    assert workspace.tree.read_bytes("/workspace/skills/a/pdf-1/a/b.txt") == b"x"
    assert workspace.tree.exists("/workspace/skills/a/pdf/other.txt") == (root == "")


HOSTILE: dict[str, dict[str, bytes | str]] = {
    "no skill": {"a/b/SKILL.md": b"x"},
    "a way out": {"SKILL.md": b"x", "../../../../etc/passwd": b"x"},
    "a whole path": {"SKILL.md": b"x", "/etc/passwd": b"x"},
    "a way out by backslashes": {"SKILL.md": b"x", "..\\..\\x": b"x"},
    "a link": {"SKILL.md": b"x", "passwd": "/etc/passwd"},
    "a bomb": {"SKILL.md": b"x", "zeros": bytes(2 << 20)},
}


@pytest.mark.parametrize("format", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_archive_is_refused_and_leaves_nothing(case: str, format: Literal["zip", "tar", "tar.gz"]) -> None:
    workspace = TreeholdWorkspace(treehold.StateBackend(), skill_bytes_max=1 << 20)
    with pytest.raises(ValueError):
        await workspace.add_skill_archive(stream(archive(format, HOSTILE[case])), format, "pdf", agent_id="a")
    with pytest.raises(ValueError):
        await workspace.add_skill_archive(stream(archive(format, HOSTILE[case])[:-600]), format, "pdf", agent_id="a")
    with pytest.raises(ValueError, match="slashes"):
        await workspace.add_skill_archive(stream(b""), format, "../pdf", agent_id="a")
    assert workspace.tree.glob("**/*", hidden=True).entries == []


async def test_skill_that_two_processes_install_at_once_is_installed_once(two: Two, tmp_path: Path) -> None:
    skill = skill_of(tmp_path)
    results = await asyncio.gather(*(workspace.add_skill(str(skill), agent_id="a") for workspace in two), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["InvalidArgument", "NoneType"]
    assert len(await two[0].list_skills(agent_id="a")) == 1


async def test_closed_workspace_saved_the_session_that_holds_its_files(tmp_path: Path) -> None:
    store = treehold.Store.open(f"sqlite:{tmp_path / 'threads.db'}")
    for text in ("one", "two"):
        with treehold.Workspace.of(store=store) as trees:
            session = trees.session(thread="t")
            async with TreeholdWorkspace(session) as workspace:
                path = await workspace.offload_context("s", [UserMsg(name="u", content=text)])
            assert treehold.Workspace.of(store=store).session(thread="t").read_text(path).count("\n") == (1 if text == "one" else 2)


PROCESS = """
import asyncio, sys
import treehold
from agentscope.agent import Agent, ContextConfig
from agentscope.message import UserMsg
from agentscope.permission import PermissionMode
from agentscope.tool import Toolkit
from treehold.agentscope import TreeholdStorage, TreeholdWorkspace
from agentscope.app.storage import SessionConfig
sys.path.insert(0, {examples!r})
from agentscope_two_processes import ScriptedModel

async def main():
    async with await treehold.Store.aopen({url!r}) as store, TreeholdStorage(store) as storage:
        if await storage.get_session("ann", "planner", "trip") is None:
            made = await storage.upsert_session("ann", "planner", SessionConfig(workspace_id="w"), session_id="trip")
            made.state.permission_context.mode = PermissionMode.BYPASS
            await storage.update_session_state("ann", "planner", "trip", made.state)
        async with TreeholdWorkspace(treehold.StoreBackend(store, ("files", "ann"))) as workspace:
            async with storage.turn("ann", "planner", "trip") as session:
                agent = Agent(
                    name="planner", system_prompt="You plan.", model=ScriptedModel({steps!r}), state=session.state, offloader=workspace,
                    toolkit=Toolkit(tools=await workspace.list_tools(), skills_or_loaders=await workspace.list_skills(agent_id="planner")),
                    context_config=ContextConfig(tool_result_limit=1_000),
                )
                answer = await agent.reply(UserMsg(name="ann", content="go on"))
                print(answer.get_text_content(), len(agent.state.context))

asyncio.run(main())
"""


def test_agents_loop_hands_one_session_to_and_fro_between_two_processes(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'agents.db'}"
    files = treehold.StoreBackend(treehold.Store.open(url), ("files", "ann"))
    files.write("/workspace/long.txt", "".join(f"line {number}\n" for number in range(3_000)))
    turns: list[list[Any]] = [
        [("Write", {"file_path": "/workspace/list.md", "content": "- tent\n"}), "written"],
        [("Read", {"file_path": "/workspace/list.md"}), ("Edit", {"file_path": "/workspace/list.md", "old_string": "tent", "new_string": "stove"}), "edited"],
        [("Read", {"file_path": "/workspace/long.txt"}), "read"],
        [("Grep", {"pattern": "stove", "path": "/workspace", "output_mode": "content"}), "found"],
    ]
    said = []
    for steps in turns:
        code = textwrap.dedent(PROCESS).format(examples=str(Path(__file__).parents[2] / "examples"), url=url, steps=steps)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said == [["written", "2"], ["edited", "4"], ["read", "6"], ["found", "8"]]
    assert files.read_text("/workspace/list.md") == "- stove\n"
    offloaded = files.glob("sessions/*/tool_result-*.txt", "/workspace").entries
    assert len(offloaded) == 1 and "line 2999" in files.read_text(offloaded[0].path) or "line 1999" in files.read_text(offloaded[0].path)
