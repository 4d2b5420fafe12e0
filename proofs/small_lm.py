"""Train the small language model that ``quality lm --model small`` and the tests stand on.

    python -m proofs.small_lm

A Llama of three layers on 1,024 byte pairs, trained on one thread in minutes on two
books in ``proofs/texts`` (Lewis Carroll, Alice's Adventures in Wonderland, 1865; Hezekiah
Butterworth, The Log School-House on the Columbia, 1890: both in the public domain). The book that
variants are measured on is not among them. A quarter of the sequences have needles in them with
their questions, so that these are no strangers to the model, though it is too small to find many.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from attnbench.features.quality.passages import QUESTION, THINGS, draw_needles

HERE = Path(__file__).parent
OUT = HERE.parent / "attnbench/features/quality/small_lm"
SIZES = {
    "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "rope_theta": 10_000.0,
    "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.05,
}  # fmt: skip
STAGES = ((128, 16, 0.6), (256, 8, 0.4))
"""Tokens of a sequence, sequences of a step, and the share of the steps."""
STEPS, RATE, WARMUP = 600, 2e-3, 100


def make_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Byte pairs; each digit is a token of its own."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"], initial_alphabet=alphabet, show_progress=False
    )
    asked = "".join(QUESTION.format(thing) for thing in THINGS)
    bpe.train_from_iterator([text, asked * 20], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


class Sequences:
    """Sequences to train on, by a seed."""

    def __init__(self, tokens: list[int], tokenize: object) -> None:
        self.tokens, self.tokenize = tokens, tokenize
        self.chance = np.random.default_rng(0)

    def _text(self, count: int) -> list[int]:
        at = self.chance.integers(len(self.tokens) - count)
        return self.tokens[at : at + count]

    def _needles(self, length: int) -> list[int]:
        """Text with needles in it and their questions after it."""
        needles = draw_needles(self.tokenize, self.chance, max(1, length // 64))
        used = 2 * sum(len(needle.tokens) for needle in needles)
        room = max(0, length - used)
        ends = sorted(self.chance.integers(room + 1, size=len(needles)))
        text, row, at = self._text(room), [], 0
        for end, needle in zip(ends, needles, strict=True):
            row += [*text[at:end], *needle.tokens]
            at = end
        row += text[at:]
        for place in self.chance.permutation(len(needles)):
            row += needles[place].tokens
        return row[:length]

    def batch(self, length: int, count: int) -> torch.Tensor:
        """The last quarter has needles."""
        rows = [self._text(length) for _ in range(count - count // 4)]
        return torch.tensor(rows + [self._needles(length) for _ in range(count // 4)])


def train(model: LlamaForCausalLM, sequences: Sequences) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    step, start = 0, time.process_time()
    for length, count, share in STAGES:
        for _ in range(round(share * STEPS)):
            left = 1 - step / STEPS
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / WARMUP, 3 * left + 0.02)
            ids = sequences.batch(length, count)
            logits = model(input_ids=ids).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 100 == 0:
                took = time.process_time() - start
                print(f"{step} of {STEPS}, {took:.0f} s: loss {float(loss):.2f}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = "".join(file.read_text() for file in sorted((HERE / "texts").glob("*.txt")))
    tokenizer = make_tokenizer(text)

    def tokenize(words: str) -> list[int]:
        return tokenizer(words, add_special_tokens=False)["input_ids"]

    tokens = tokenize(text)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    numbers = sum(x.numel() for x in model.parameters())
    print(f"{len(text):,} characters, {len(tokens):,} tokens; {numbers:,} numbers in the model")
    train(model, Sequences(tokens, tokenize))
    model.to(torch.bfloat16).save_pretrained(OUT)
    tokenizer.save_pretrained(OUT)


if __name__ == "__main__":
    main()
