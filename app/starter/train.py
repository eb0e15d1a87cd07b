"""Train the starter from nothing: ``python -m app.starter.train --out FOLDER`` (under torchrun for several GPUs).

The two stages and the scores run one after another; --stages picks some. The world is rendered on the fly, so nothing
is downloaded. README.md in this folder says how long the shipped weights took and what they scored.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from app.starter import score
from app.starter.prompts import frozen_prompts
from app.starter.train_transformer import Recipe, train_transformer
from app.starter.train_vae import train_vae
from app.starter.training import Ranks

STAGES = ("vae", "transformer", "score", "gates", "sweep")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pipeline and the reports")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--vae-seconds", type=float, default=330.0)
    parser.add_argument("--vae-batch", type=int, default=8, help="clips per GPU and step")
    parser.add_argument("--vae-pool", type=int, default=2048, help="rendered clips kept per GPU")
    parser.add_argument("--group", type=int, default=Recipe.group, help="clips rendered together")
    parser.add_argument("--transformer-seconds", type=float, default=900.0)
    parser.add_argument("--batch", type=int, default=Recipe.batch, help="clips per GPU and step")
    parser.add_argument("--pool", type=int, default=Recipe.pool, help="latent clips kept per GPU")
    parser.add_argument("--prefill", type=int, default=Recipe.prefill, help="latent clips per GPU before training")
    parser.add_argument("--refresh-every", type=int, default=Recipe.refresh_every, help="steps between fresh groups")
    parser.add_argument("--prompts", type=int, help="score only the first of the frozen prompts")
    arguments = parser.parse_args()
    ranks, out = Ranks(), arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if "vae" in arguments.stages:
        train_vae(
            ranks,
            arguments.vae_seconds,
            out / "vae",
            batch=arguments.vae_batch,
            pool=arguments.vae_pool,
            group=arguments.group,
        )
        ranks.largest(0.0)
    if "transformer" in arguments.stages:
        recipe = Recipe(
            seconds=arguments.transformer_seconds,
            batch=arguments.batch,
            group=arguments.group,
            pool=arguments.pool,
            prefill=arguments.prefill,
            refresh_every=arguments.refresh_every,
        )
        forbidden = frozenset(p.prompt for p in frozen_prompts())
        train_transformer(ranks, recipe, out / "vae", out, forbidden)
    if "score" in arguments.stages and ranks.first:
        tables = score.score(ranks, out, out / "scores.json", out / "clips.png", arguments.prompts)
        _tell(out / "scores_short.json", tables)
    if "gates" in arguments.stages and ranks.first:
        _tell(out / "gates.json", score.vae_gates(ranks, out / "vae", out / "vae.png"))
    if "sweep" in arguments.stages and ranks.first:
        _tell(out / "sweep.json", score.sweep(ranks, out))
    ranks.close()


def _tell(path: Path, result: dict[str, object]) -> None:
    path.write_text(json.dumps(result, indent=1))
    for key, value in result.items():
        print(f"{key}: {json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main()
