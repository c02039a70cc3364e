"""``greentrain launch`` that goes out of its allocation for seconds: a replayed day lasts 43 s."""

from functools import partial

from greentrain.cli import main
from greentrain.control.launch import slurm

if __name__ == "__main__":
    slurm.open_slurm = partial(slurm.open_slurm, min_away_s=2.0, soon_s=5.0)
    main()
