"""The main job, end to end: `python -m kvmend.demo` (see docs/demo.md).

    __main__.py    command line
    scenario.py    what happens, in order: calm, pause, reset, kill, recovery
    router.py      sends requests to prefill and decode and follows them
    cluster.py     starts, stops and kills the processes; reads what they say
    worker.py      what a process does: prefill.py, decode.py, or the registry
    workload.py    what is moved: model.py (SmolLM2) or synthetic.py (Llama-3-8B geometry)
    pool.py        pages, canaries
    timeline.py    what you see while it runs
    report.py      the table and the JSON file
"""
