"""Device time of one call, without what launching it costs: in a replayed graph of many."""
import torch


def nodes_for(moved_bytes):
    """How many calls the graph holds; one more comes before it."""
    return 10 if moved_bytes > 100e6 else 20 if moved_bytes > 10e6 else 60


def graph_us(function, moved_bytes):
    """Microseconds of a call that moves so many bytes: the second best of 6 replays."""
    launches = nodes_for(moved_bytes)
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            function()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(6):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / launches)
    return sorted(times)[1]
