"""kvmend's engine under Mooncake's name."""

from kvmend.mooncake import *  # noqa: F403
