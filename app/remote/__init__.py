"""Many clips on many machines, over Ray: the queue and the finished clips stay here, the engines are elsewhere.

    cluster.py     joins the cluster, finds places (one per GPU, or per machine without one), says what's wrong
    host.py        what runs there: starts a worker's process and passes on what it says; holds no jobs
    worker.py      such a process as the `Worker` that this machine's keeper knows
    travel.py      pictures and LoRAs go there, finished clips come home, in parts that are checked
    crew.py        one dispatcher per place; all of them take from the one queue, and a lost job goes back into it once
    service.py     the owner of the queue with such a crew

Only cluster.py and worker.py touch Ray, which is an extra and may be absent.
"""
