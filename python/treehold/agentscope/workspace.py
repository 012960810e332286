"""A workspace of agentscope whose files are a tree of treehold."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import posixpath
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, TypeVar

from agentscope._logging import logger
from agentscope.mcp import MCPClient
from agentscope.message import DataBlock, Msg, ToolResultBlock
from agentscope.tool import BackendBase, ToolBase
from agentscope.workspace import WorkspaceBase
from agentscope.workspace._base import MCP_FILE_VERSION

from treehold import Backend, Change, Session
from treehold.agentscope._skills import MARKDOWN, Budget, Files, of_archive, of_directory
from treehold.agentscope.backend import TreeholdBackend
from treehold.errors import AlreadyExists, Conflict, Error, InvalidArgument, NotFound, TooLarge

__all__ = ["TreeholdWorkspace"]

CONTEXT = "/context.jsonl"
"""How the path of an offloaded context ends."""

ATTEMPTS = 16
"""How often a change is tried that others disturb."""

INSTRUCTIONS = """<workspace>
You have access to a workspace at `{workdir}`, which other processes of yours may share. Use its tools to read and write files there:

- `{workdir}/skills/` holds your skills.
- `{workdir}/sessions/` holds what was moved out of your context.
- `{workdir}/data/` holds images and other data.
</workspace>"""

Key = tuple[str, str]
"""An agent and a session."""

T = TypeVar("T")


class TreeholdWorkspace(WorkspaceBase):
    """Runs agentscope's tools, skills and offloading on a tree. Any number of processes may share it.

    `tree` is a backend or a session, which `close` saves. `workdir` is the directory of the workspace in it. Without `shell`, a backend such
    as agentscope's `LocalBackend`, there is no `Bash`, because a tree has no processes. A skill has at most `skill_bytes_max` bytes, and
    is installed in one commit.
    """

    def __init__(
        self,
        tree: Backend | Session,
        *,
        workdir: str = "/workspace",
        workspace_id: str | None = None,
        shell: BackendBase | None = None,
        default_mcps: list[MCPClient] | None = None,
        skill_paths: list[str] | None = None,
        max_live_stateful_mcps: int | None = None,
        instructions: str = INSTRUCTIONS,
        skill_bytes_max: int = 64 * 1024 * 1024,
    ) -> None:
        if skill_bytes_max < 1:
            raise InvalidArgument(f"`skill_bytes_max` is {skill_bytes_max}; use at least 1")
        super().__init__(
            workspace_id=workspace_id,
            default_mcps=default_mcps,
            skill_paths=skill_paths,
            max_live_stateful_mcps=max_live_stateful_mcps,
        )
        self._tree = tree
        self._shell = shell
        self.workdir = "/" + workdir.strip("/")
        self._files = self._backend = TreeholdBackend(tree, cwd=workdir, shell=shell)
        self._instructions = instructions
        self._skill_bytes_max = skill_bytes_max

    @property
    def tree(self) -> Backend:
        """The tree with the files."""
        return self._tree

    async def initialize(self) -> None:
        """Reads which MCP servers are declared, and keeps `skill_paths` for agents that come. Does nothing if it has happened."""
        if self.is_alive:
            return
        async with self._mcp_lock:
            self._mcp_specs = await self._restore_mcp_specs()
        await self._setup_skills()
        self.is_alive = True

    async def close(self) -> None:
        """Closes connections to MCP servers, and saves the session that the files belong to. The files stay."""
        async with self._mcp_lock:
            await self._close_all_mcp_instances()
        if isinstance(self._tree, Session):
            await self._tree.asave()
        self.is_alive = False

    async def reset(self) -> None:
        """Removes skills, sessions, data and declared MCP servers. Other files stay. `skill_paths` are not installed again."""
        async with self._mcp_lock:
            await self._close_all_mcp_instances()
            self._mcp_specs.clear()
            await self._files.delete_path(self._mcp_file)
        async with self._skill_lock:
            self._equipped_partitions.clear()
            await self._files.delete_path(self._skills_dir)
        for directory in (self._sessions_dir, self._data_dir):
            await self._files.delete_path(directory)

    async def get_instructions(self) -> str:
        """Returns what the system prompt says about the workspace."""
        return self._instructions.format(workdir=self.workdir)

    async def list_tools(self) -> list[ToolBase]:
        """Returns agentscope's file tools on the tree, and `Bash` if there is a shell."""
        tools = await super().list_tools()
        return tools if self._shell is not None else [tool for tool in tools if tool.name != "Bash"]

    # MCP servers. Their declarations are a file that processes change one after the other.

    async def list_mcps(self, *, agent_id: str | None = None, session_id: str | None = None) -> list[MCPClient]:
        """Returns clients of the MCP servers of a session, those that another process declared included."""
        key = (agent_id or "", session_id or "")
        async with self._mcp_lock:
            self._mcp_specs = await self._restore_mcp_specs()
            declared = {client.name for client in self._declared_specs(*key)}
            live = self._mcp_instances.get(key, {})
            for name in [name for name in live if name not in declared]:
                await self._close_mcp_instance(live.pop(name))
        return await super().list_mcps(agent_id=agent_id, session_id=session_id)

    async def add_mcp(
        self, mcp_client: MCPClient, *, agent_id: str | None = None, session_id: str | None = None
    ) -> MCPClient:
        """Connects to an MCP server and declares it for a session. Raises `ValueError` for a name that the session has."""
        key = (agent_id or "", session_id or "")

        def add(declared: list[MCPClient]) -> list[MCPClient]:
            if any(client.name == mcp_client.name for client in declared):
                raise InvalidArgument(f"the session has an MCP server `{mcp_client.name}` already; choose another name")
            return [*declared, mcp_client]

        async with self._mcp_lock:
            self._mcp_specs = await self._restore_mcp_specs()
            add(self._declared_specs(*key))
            await self._enforce_mcp_capacity(*key, mcp_client)
            is_ours = mcp_client.is_stateful and not mcp_client.is_connected
            if is_ours:
                await mcp_client.connect()
            try:
                await self._declare(key, add)
            except BaseException:
                if is_ours:
                    await self._close_mcp_instance(mcp_client)
                raise
            self._mcp_instances.setdefault(key, {})[mcp_client.name] = mcp_client
        return mcp_client

    async def remove_mcp(self, name: str, *, agent_id: str | None = None, session_id: str | None = None) -> None:
        """Closes the connection to an MCP server and removes its declaration from a session, if it is there."""
        key = (agent_id or "", session_id or "")
        async with self._mcp_lock:
            await self._declare(key, lambda declared: [client for client in declared if client.name != name])
            instance = self._mcp_instances.get(key, {}).pop(name, None)
            if instance is not None:
                await self._close_mcp_instance(instance)

    async def purge_session(self, *, agent_id: str, session_id: str) -> None:
        """Removes what the workspace holds for a session. Failures are logged, as agentscope expects."""
        try:
            async with self._mcp_lock:
                if (agent_id, session_id) in await self._restore_mcp_specs():
                    await self._declare((agent_id, session_id), lambda _: None)
        except Error as error:
            logger.warning("the MCP servers of the session %r stay declared: %s", session_id, error)
        await super().purge_session(agent_id=agent_id, session_id=session_id)

    async def _declare(self, key: Key, change: Callable[[list[MCPClient]], list[MCPClient] | None]) -> None:
        """Changes what a session declares in the file, whatever others change there meanwhile. `None` forgets the session."""

        async def changed() -> None:
            self._mcp_specs = await self._restore_mcp_specs()
            before = self._declared_specs(*key)
            after = change(before)
            if after is None:
                self._mcp_specs.pop(key, None)
            elif after != before:
                self._mcp_specs[key] = after
            else:
                return
            await self._save_mcp_file()

        await _undisturbed(changed)

    async def _restore_mcp_specs(self) -> dict[Key, list[MCPClient]]:
        """Reads the declarations. Unlike agentscope's own method it fails if the store does, and not only logs it."""
        try:
            await self._files.read_file(self._mcp_file)
        except NotFound:
            return {}
        return await super()._restore_mcp_specs()

    async def _save_mcp_file(self) -> None:
        """Replaces the version of the declarations that was read last."""
        declared: dict[str, dict[str, list[object]]] = {}
        for (agent, session), clients in self._mcp_specs.items():
            declared.setdefault(agent, {})[session] = [client.model_dump(mode="json") for client in clients]
        text = json.dumps({"version": MCP_FILE_VERSION, "mcps": declared}, indent=2, ensure_ascii=False)
        await self._files.write_file(self._mcp_file, text.encode())

    # What is moved out of a context. Two processes may do it for one session at once.

    async def offload_context(self, session_id: str, msgs: list[Msg]) -> str:
        """Appends messages to the offloaded context of a session, and returns the path of its file."""
        appending = copy.copy(self)
        appending._backend = _Appending(self._tree, cwd=self.workdir)
        return await super(TreeholdWorkspace, appending).offload_context(session_id, msgs)

    async def offload_tool_result(self, session_id: str, tool_result: ToolResultBlock) -> str:
        """Writes a tool result to a file of its own, and returns its path."""
        return await _undisturbed(lambda: super(TreeholdWorkspace, self).offload_tool_result(session_id, tool_result))

    async def offload_data_block(self, block: DataBlock) -> DataBlock:
        """Writes the data of a block to a file, and returns a block that refers to it."""
        return await _undisturbed(lambda: super(TreeholdWorkspace, self).offload_data_block(block))

    # Skills. A skill appears whole or not at all.

    async def add_skill(self, skill_path: str, *, agent_id: str | None = None) -> None:
        """Installs a skill of this machine for an agent. Raises `ValueError` if it has none, or a skill of that name is there."""
        files = await asyncio.to_thread(of_directory, skill_path, Budget(self._skill_bytes_max))
        name = os.path.basename(os.path.abspath(skill_path))
        partition = await self._equip_partition(agent_id)
        async with self._skill_lock:
            try:
                await self._install(f"{partition}/{name}", files)
            except AlreadyExists as error:
                raise InvalidArgument(f"the agent has a skill in `{name}` already; remove it first") from error

    async def add_skill_archive(
        self,
        stream: AsyncIterator[bytes],
        fmt: Literal["zip", "tar", "tar.gz"],
        dir_name: str,
        max_extracted_bytes: int = 500 * 1024 * 1024,
        *,
        agent_id: str | None = None,
    ) -> None:
        """Installs a skill from an archive for an agent, with a number behind its name if that is taken.

        Raises `ValueError` for an archive without a skill, and `TooLarge` for one over `skill_bytes_max` or `max_extracted_bytes`.
        """
        if dir_name in ("", ".", "..") or "/" in dir_name:
            raise InvalidArgument(f"`{dir_name}` is no name of a directory; leave out slashes")
        bytes_max = min(self._skill_bytes_max, max_extracted_bytes)
        with tempfile.TemporaryFile() as archive:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > self._skill_bytes_max:
                    raise TooLarge(f"the archive has over {self._skill_bytes_max} bytes; shrink it, or raise `skill_bytes_max`")
                await asyncio.to_thread(archive.write, chunk)
            archive.seek(0)
            files = await asyncio.to_thread(of_archive, archive, fmt, Budget(bytes_max))
        partition = await self._equip_partition(agent_id)

        async def installed() -> None:
            await self._install(f"{partition}/{await self._free_skill_dir(dir_name, partition)}", files)

        async with self._skill_lock:
            await _undisturbed(installed)

    async def _equip_partition(self, agent_id: str | None) -> str:
        """Returns the directory with an agent's skills. The first time, they are those of `skill_paths`."""
        partition = self._skill_partition(agent_id)
        if partition not in self._equipped_partitions:
            await _undisturbed(lambda: self._equip(partition))
            self._equipped_partitions.add(partition)
        return partition

    async def _equip(self, partition: str) -> None:
        if await self._tree.aexists(partition):
            return
        try:
            await self._tree.acopy(self._skill_seed_dir, partition)
        except NotFound:
            await self._tree.acreate_dir(partition)
        except AlreadyExists:
            pass  # Another process was faster.

    async def _setup_skills(self) -> None:
        """Keeps the skills of `skill_paths`, once, for agents that come."""
        if not self.skill_paths or await self._tree.aexists(self._skill_seed_dir):
            return
        budget, files = Budget(self._skill_bytes_max), Files()
        for path in self.skill_paths:
            name = os.path.basename(os.path.abspath(path))
            skill = await asyncio.to_thread(of_directory, path, budget)
            files.update({f"{name}/{file}": content for file, content in skill.items()})
        try:
            await self._install(self._skill_seed_dir, files)
        except AlreadyExists:
            pass  # Another process was faster.

    async def _install(self, directory: str, files: Files) -> None:
        """Writes files into a new directory, in one commit where the tree has them.

        Of two processes that do so at once, one fails, because both create a SKILL.md. It comes last, so that agents never see a half of it.
        """
        if await self._tree.aexists(directory):
            raise AlreadyExists("the directory is there already; choose another name", path=directory)
        order = sorted(files, key=lambda path: (posixpath.basename(path) == MARKDOWN, path))
        writes = [Change.write(f"{directory}/{path}", files[path], mode="create") for path in order]
        await self._tree.aapply(writes, allow_partial=not self._tree.capabilities.atomic_batch)


class _Appending(TreeholdBackend):
    """Appends to a context, which agentscope reads and replaces: what others append meanwhile stays, and long contexts cost no more."""

    async def read_file(self, path: str) -> bytes:
        return b"" if path.endswith(CONTEXT) else await super().read_file(path)

    async def write_file(self, path: str, data: bytes) -> None:
        if path.endswith(CONTEXT):
            await self._tree.aappend(path, data)
        else:
            await super().write_file(path, data)


async def _undisturbed(change: Callable[[], Awaitable[T]]) -> T:
    """Repeats a change against the fresh content as long as another process is faster."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await change()
        except (AlreadyExists, Conflict):
            await asyncio.sleep(0)
    return await change()
