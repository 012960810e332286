"""What the rows of checkpoints and pending writes hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from treehold import Corrupt, Row

from ._content import Reference, reference
from ._types import is_dict

FORMAT = 1
"""The version of the record format."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored checkpoint without the values of its channels."""

    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: dict[str, Any]
    """The checkpoint without `channel_values`."""
    metadata: CheckpointMetadata
    references: Mapping[str, Reference]
    """Where the value of each channel is; channels without a value are absent."""
    donors: Mapping[str, Reference]
    """Where the latest value of channels is that have a version and no value, such as delta channels between
    snapshots. The next snapshot shares what is unchanged, so it costs what changed since."""
    version: int
    """The version of its row."""

    @property
    def run_id(self) -> str | None:
        """The run that made it, if it is known."""
        run_id = cast("Mapping[str, Any]", self.metadata).get("run_id")
        return run_id if isinstance(run_id, str) else None

    @property
    def delta_channels(self) -> set[str]:
        """The channels that the graph keeps as deltas, as far as this checkpoint tells."""
        return {
            *delta_counters(cast("Mapping[str, Any]", self.metadata)),
            *(name for name, place in self.references.items() if place.is_snapshot),
        }


def delta_counters(metadata: Mapping[str, Any]) -> set[str]:
    """Returns the channels for which a graph counts the updates since their last snapshot."""
    counters = metadata.get("counters_since_delta_snapshot")
    return set(counters) if is_dict(counters) else set()


def encode_record(
    serde: SerializerProtocol,
    checkpoint_ns: str,
    parent_id: str | None,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    references: Mapping[str, Reference],
    donors: Mapping[str, Reference],
) -> tuple[bytes, bytes]:
    """Returns the metadata and the body of a checkpoint's row."""
    kind, payload = serde.dumps_typed(
        {
            "format": FORMAT,
            "ns": checkpoint_ns,
            "parent": parent_id,
            "checkpoint": dict(checkpoint),
            "metadata": dict(metadata),
            "channels": {name: place.encoded() for name, place in references.items()},
            "donors": {name: place.encoded() for name, place in donors.items()},
        }
    )
    return kind.encode("utf-8"), payload


def decode_record(serde: SerializerProtocol, row: Row) -> Record:
    """Reads what `encode_record` wrote."""
    fields: Any = serde.loads_typed((row.meta.decode("utf-8"), row.body))
    if not is_dict(fields) or fields.get("format") != FORMAT:
        raise Corrupt("a checkpoint has a format that this version does not know; upgrade treehold")
    checkpoint = fields["checkpoint"]
    return Record(
        checkpoint_ns=fields["ns"],
        checkpoint_id=checkpoint["id"],
        parent_id=fields["parent"],
        checkpoint=checkpoint,
        metadata=fields["metadata"],
        references={name: reference(place) for name, place in fields["channels"].items()},
        donors={name: reference(place) for name, place in fields["donors"].items()},
        version=row.version,
    )
