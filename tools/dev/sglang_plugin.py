"""Loads the entry point as SGLang does, with the modules of the real wheel: the backend's name can
be chosen, `get_kv_class` finds our classes everywhere, and the recoveries are in SGLang's metrics."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile


def entry_point() -> str:
    """A folder with the metadata that an installed kvmend has: the entry point from pyproject."""
    import tomllib

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "pyproject.toml"), "rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["sglang.srt.plugins"]
    folder = tempfile.mkdtemp(prefix="kvmend_plugin_")
    info = os.path.join(folder, "kvmend-0.0.dist-info")
    os.mkdir(info)
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: kvmend\nVersion: 0.0\n")
    with open(os.path.join(info, "entry_points.txt"), "w") as file:
        file.write("[sglang.srt.plugins]\n")
        file.writelines(f"{name} = {value}\n" for name, value in points.items())
    return folder


def main() -> int:
    sys.path[:0] = [sys.argv[1], entry_point()]
    os.environ.pop("KV_MODULE", None)
    os.environ["ENGINE_MODULE"] = "kvmend.mooncake"
    import sglang_shim

    sglang_shim.install()
    sglang_shim._pkg("sglang.srt.arg_groups", "srt/arg_groups")
    plugins = importlib.import_module("sglang.srt.plugins")
    utils = importlib.import_module("sglang.srt.disaggregation.utils")
    importer = type(sys)("importer")  # a module that took the function by name, as the schedulers do
    importer.get_kv_class = utils.get_kv_class
    sys.modules["sglang.srt.importer"] = importer

    plugins.load_plugins()

    choices = importlib.import_module("sglang.srt.arg_groups.choices")
    assert "kvmend" in choices.DISAGG_TRANSFER_BACKEND_CHOICES
    backend = utils.TransferBackend("kvmend")
    kinds = utils.KVClassType
    wanted = {
        kinds.MANAGER: "KvmendKVManager",
        kinds.SENDER: "KvmendKVSender",
        kinds.RECEIVER: "KvmendKVReceiver",
        kinds.BOOTSTRAP_SERVER: "KvmendKVBootstrapServer",
        kinds.KVARGS: "KVArgs",
    }
    mooncake = utils.TransferBackend.MOONCAKE
    for get in (utils.get_kv_class, importer.get_kv_class):
        assert {kind: get(backend, kind).__name__ for kind in kinds} == wanted
        assert get(mooncake, kinds.MANAGER).__name__ == "MooncakeKVManager"
    os.environ["KVMEND_SGLANG_REPLACE_MOONCAKE"] = "1"
    assert importer.get_kv_class(mooncake, kinds.MANAGER).__name__ == "KvmendKVManager"

    import prometheus_client
    from kvmend.sglang.engine import recoveries_counter

    recoveries_counter().inc(3)
    text = prometheus_client.generate_latest().decode()
    assert "sglang:failed_session_recoveries_total 3.0" in text
    print("the entry point registers the backend with the real wheel's modules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
