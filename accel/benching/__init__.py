"""What `accel.bench` measures and how: work.py names it, models.py builds it, worker.py runs it in processes of its
own."""
