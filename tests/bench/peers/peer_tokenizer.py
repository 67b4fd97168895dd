"""The peer of `moonshard tokenize`: Hugging Face's tokenizers, on one core.

    python peer_tokenizer.py TEXT FOLDER

trains two tokenizers of 16,000 tokens on a text, with the pre-tokenizers of GPT-2 and of Llama 3 (once: they stay as
FOLDER/gpt2.json and FOLDER/llama3.json), and encodes the text, document after document as `fortunes` has them, which suits it
best. One JSON line for each: the tokens, and MB/s of processor time, the best of three.
"""

import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(path, pre_tokenizer, text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=16000, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(path)


def main():
    text = open(sys.argv[1], encoding="utf-8").read()
    kinds = {
        "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "llama3": pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
    }
    for name, pre_tokenizer in kinds.items():
        path = os.path.join(sys.argv[2], name + ".json")
        if not os.path.exists(path):
            train(path, pre_tokenizer, text)
        tokenizer = Tokenizer.from_file(path)
        best, documents = None, text.split("\n%\n")
        for _ in range(3):
            began = time.process_time()
            for document in documents:
                tokenizer.encode(document, add_special_tokens=False)
            took = time.process_time() - began
            best = took if best is None else min(best, took)
        tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
        print(json.dumps({"name": name, "tokens": tokens, "mb_per_s": len(text.encode()) / 1e6 / best}))


main()
