"""Makes the demo from a seed: tokenizer, model and held-out evaluation set.

The model is a real Llama, only tiny, trained from scratch to summarize the stories of articles.py. Most of the loss
is the summary's; a little of the article's teaches it the words. Training stops by the clock, so two runs give
models equally good, not equal; tokenizer and evaluation set come out the same every time.

    python -m demo.make

The model beside this file took 6.5 minutes on one H200: 27,447 steps, 666 M tokens, held-out loss 0.0508. It copies
names after about 1,500 steps of this size (34 M tokens) and is nearly done after 3,000.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from multiprocessing import Pool
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo.articles import generate

HERE = Path(__file__).parent
INSTRUCTION = (
    "Summarize the following news article in 128 tokens. Please output the summary only, without any other text."
    "\n\nArticle:\n{input}\n\nSummary:"
)
CONTEXT, ANSWER = 1024, 128
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
HELD_OUT = 1_000_000_000  # the first held-out seed; training draws its stories from far below


@dataclass(frozen=True)
class Recipe:
    minutes: float = 6.5
    stories: int = 300_000
    held_out: int = 256
    vocabulary: int = 704
    batch_tokens: int = 24_576
    learning_rate: float = 2e-3
    warmup: float = 0.02  # of the time
    short_first: float = 0.2  # of the time, until the longest stories are in: copying forms on short ones
    shortest: int = 400
    article_weight: float = 0.1  # of an article's token in the loss; a summary's counts 1
    seed: int = 1
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    out: str = str(HERE)


@dataclass(frozen=True)
class Example:
    tokens: npt.NDArray[np.int16]  # the prompt's, then the summary's
    prompt: int  # how many are the prompt's


def train_tokenizer(vocabulary: int) -> Tokenizer:
    """Byte-level BPE like Llama 3's: special tokens end the vocabulary, and id 0 is "!"."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for seed in range(5_000) for text in generate(seed)), trainer)
    tokenizer.add_special_tokens([BOS, EOS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, article: str, summary: str) -> Example | None:
    """None if the prompt leaves no room for the answer."""
    prompt = tokenizer.encode(INSTRUCTION.format(input=article)).ids
    answer = tokenizer.encode(f" {summary}{EOS}", add_special_tokens=False).ids
    if len(prompt) > CONTEXT - ANSWER:
        return None
    return Example(np.array((prompt + answer)[: CONTEXT + 1], dtype=np.int16), len(prompt))


def encode_many(job: tuple[Tokenizer, range]) -> list[Example]:
    tokenizer, seeds = job
    return [example for seed in seeds if (example := encode(tokenizer, *generate(seed)))]


class Corpus:
    """Examples sorted by length, all on the device; a batch is a run of neighbors, with next to no padding."""

    def __init__(self, examples: Sequence[Example], device: str) -> None:
        examples = sorted(examples, key=lambda example: len(example.tokens))
        self.sizes = np.array([len(example.tokens) for example in examples])
        end = np.zeros(CONTEXT, np.int16)
        self.tokens = torch.from_numpy(np.concatenate([*(e.tokens for e in examples), end])).to(device)
        self.lengths = torch.from_numpy(self.sizes).to(device)
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.prompts = torch.tensor([example.prompt for example in examples], device=device)

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, rows: slice, article_weight: float = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids, and the weight of each but the first as a target.

        A row shorter than the longest runs on into the next one, where its own causal attention never looks.
        """
        place = torch.arange(self.sizes[rows].max(), device=self.tokens.device)
        ids = self.tokens[self.starts[rows, None] + place].long()
        summary = (place >= self.prompts[rows, None]) & (place < self.lengths[rows, None])
        weights = summary + article_weight * (place < self.prompts[rows, None])
        return ids, weights[:, 1:]

    def sample(self, rng: Random, longest: float, tokens: int) -> slice:
        """Rows for a batch of so many tokens, none longer than asked."""
        stop = max(int(np.searchsorted(self.sizes, longest)), 1)
        first = rng.randrange(stop)
        count = max(tokens // int(self.sizes[first]), 1)
        first = max(min(first, stop - count), 0)
        return slice(first, min(first + count, stop))


def make_corpus(tokenizer: Tokenizer, seeds: range, device: str) -> Corpus:
    jobs = [(tokenizer, seeds[first : first + 1000]) for first in range(0, len(seeds), 1000)]
    with Pool() as pool:
        return Corpus([example for examples in pool.imap(encode_many, jobs) for example in examples], device)


def evaluation(tokenizer: Tokenizer, records: int) -> Iterator[dict[str, str | list[int]]]:
    """The held-out stories as MLPerf's records."""
    seed = HELD_OUT
    while records:
        article, summary = generate(seed)
        if example := encode(tokenizer, article, summary):
            yield {
                "instruction": INSTRUCTION,
                "input": article,
                "tok_input": example.tokens[: example.prompt].tolist(),
                "output": summary,
            }
            records -= 1
        seed += 1


def new_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=bos,
        eos_token_id=eos,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=bos, eos_token_id=eos, pad_token_id=eos, do_sample=False)
    return model


def predict(model: LlamaForCausalLM, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits for each token but the first, and their losses."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        logits = model(ids[:, :-1], use_cache=False).logits
    losses = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return logits, losses.view(len(ids), -1)


def train(model: LlamaForCausalLM, corpus: Corpus, held_out: Corpus, recipe: Recipe) -> None:
    rng = Random(recipe.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    began = reported = time.monotonic()
    steps = tokens = 0
    while (done := (time.monotonic() - began) / (60 * recipe.minutes)) < 1:
        rate = min(done / recipe.warmup, 0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate
        longest = recipe.shortest + (CONTEXT + 2 - recipe.shortest) * min(done / recipe.short_first, 1)
        ids, weights = corpus.batch(corpus.sample(rng, longest, recipe.batch_tokens), recipe.article_weight)
        _, losses = predict(model, ids)
        ((losses * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps, tokens = steps + 1, tokens + ids.numel()
        if time.monotonic() - reported > 3 * recipe.minutes:  # twenty reports
            reported = time.monotonic()
            print(
                f"{done:4.0%} {steps:6} steps {tokens / 1e6:6.1f} M tokens  {score(model, held_out)}",
                flush=True,
            )
    print(f"{steps} steps, {tokens / 1e6:.1f} M tokens, {score(model, held_out)}")


@torch.no_grad()
def score(model: LlamaForCausalLM, held_out: Corpus) -> str:
    loss = right = total = 0.0
    for first in range(0, len(held_out), 32):
        ids, weights = held_out.batch(slice(first, first + 32))
        logits, losses = predict(model, ids)
        loss += (losses * weights).sum().item()
        right += ((logits.argmax(-1) == ids[:, 1:]) * weights).sum().item()
        total += weights.sum().item()
    return f"held-out loss {loss / total:.4f}, tokens right {right / total:.2%}"


@torch.no_grad()
def show(model: LlamaForCausalLM, held_out: Corpus, tokenizer: Tokenizer) -> None:
    """A few held-out summaries beside the model's."""
    for index in range(0, len(held_out), len(held_out) // 4):
        size = int(held_out.prompts[index])
        ids = held_out.batch(slice(index, index + 1))[0]
        answer = model.generate(ids[:, :size], max_new_tokens=ANSWER)[0, size:]  # type: ignore[misc]
        print(f"\nwant {tokenizer.decode(ids[0, size:].tolist())}\ngot  {tokenizer.decode(answer.tolist())}")


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    model.bfloat16().save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    settings = folder / "tokenizer_config.json"  # the class by the name that every version of transformers knows
    content = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(content, indent=2) + "\n")


def main(recipe: Recipe) -> None:
    out = Path(recipe.out)
    torch.manual_seed(recipe.seed)
    tokenizer = train_tokenizer(recipe.vocabulary)
    records = list(evaluation(tokenizer, recipe.held_out))
    (out / "cnn_eval.json").write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    corpus = make_corpus(tokenizer, range(recipe.stories), recipe.device)
    held_out = make_corpus(tokenizer, range(2 * HELD_OUT, 2 * HELD_OUT + 64), recipe.device)  # to watch progress
    print(f"{len(corpus)} stories, {len(corpus.tokens) / 1e6:.1f} M tokens", flush=True)
    with torch.device(recipe.device):
        model = new_model(tokenizer)
    train(model, corpus, held_out, recipe)
    show(model, held_out, tokenizer)
    save(model, tokenizer, out / "model")


def parse() -> Recipe:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Recipe):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    return Recipe(**vars(parser.parse_args()))


if __name__ == "__main__":
    main(parse())
