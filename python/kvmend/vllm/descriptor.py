"""What a prefill rank says about itself: JSON in its memory, read once by each decode rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .geometry import Incompatible, LayerGeometry
from .parallel import Place

__all__ = ["Descriptor"]

VERSION = 2
MAX_LAYERS = 4096


@dataclass(frozen=True)
class Descriptor:
    """A rank's caches and lease board. Addresses are in that rank's process."""

    place: Place
    kv_heads: int  # of the model
    blocks: int
    #: Whether the cache's heads are the rank's share of `kv_heads`; if not, only equal ranks match.
    divisible: bool
    words: int  # leases.Board.words
    done: int  # leases.Board.done
    renewed: int  # leases.Board.renewed
    slots: int
    readers: int
    layers: tuple[LayerGeometry, ...]
    #: What must be equal on both sides, by name; for messages and comparison.
    traits: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Descriptor:
        """Raises Incompatible for what isn't one."""
        try:
            value: dict[str, Any] = json.loads(data)
            version = value.pop("version")
            if version != VERSION:
                raise Incompatible(f"descriptor version {version!r} there, {VERSION} here")
            layers = value.pop("layers")
            if not 0 < len(layers) <= MAX_LAYERS:
                raise Incompatible(f"{len(layers)} layers")
            place = Place(**value.pop("place"))
            geometry = tuple(LayerGeometry(**layer) for layer in layers)
            found = cls(place=place, layers=geometry, **value)
        except Incompatible:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Incompatible(f"not a descriptor: {type(error).__name__}: {error}") from None
        skipped = ("place", "layers", "traits", "divisible")
        numbers = [v for k, v in asdict(found).items() if k not in skipped]
        numbers += asdict(place).values()
        numbers += [v for layer in found.layers for k, v in asdict(layer).items() if k != "name"]
        if not all(type(n) is int and 0 <= n < 2**64 for n in numbers):
            raise Incompatible("a number in the descriptor is out of range")
        return found

    def check(self, traits: dict[str, str]) -> None:
        """Raises Incompatible, naming what differs from ours."""
        for name in sorted(set(traits) | set(self.traits)):
            if traits.get(name) != self.traits.get(name):
                raise Incompatible(
                    f"{name} is {self.traits.get(name)!r} at prefill, {traits.get(name)!r} here"
                )
