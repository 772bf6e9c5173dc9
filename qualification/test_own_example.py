"""An example of a test of one's own: a function on every rank, judged by the slowest of them."""


def test_barrier(cluster, qualify):
    rounds = [max(cluster.run("own_jobs:barrier_seconds", calls=50)) for _ in range(8)]
    qualify.samples("barrier", rounds, unit="s", require="<= 50 ms")
