"""SmolLM2's tokenizer, built from the vocabulary in the GGUF file."""

from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from .weights import Vocabulary

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_CONTROL = 3  # GGUF's token type for special tokens


class SmolTokenizer:
    """Byte-level BPE with single digits, as SmolLM2 was trained with, and its chat format.

    Not for several threads at once.
    """

    def __init__(self, vocabulary: Vocabulary):
        """Raises ValueError for a vocabulary of another pre-tokenizer."""
        if vocabulary.pre != "smollm":
            raise ValueError(f"pre-tokenizer {vocabulary.pre!r} is not supported, only 'smollm'")
        ids = {token: i for i, token in enumerate(vocabulary.tokens)}
        merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
        self._tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        types = vocabulary.token_types
        special = [t for t, kind in zip(vocabulary.tokens, types, strict=True) if kind == _CONTROL]
        self._tokenizer.add_special_tokens(
            [AddedToken(t, special=True, normalized=False) for t in special]
        )
        self._start = ids["<|im_start|>"]
        self._end = ids["<|im_end|>"]
        #: Tokens that end an answer.
        self.stop_ids = frozenset({vocabulary.eos_id, ids["<|endoftext|>"]})

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of `text`.

        `special`: recognise names of special tokens, such as `<|im_end|>`, in the text. Leave it
        off for anything a user wrote: there they are just characters.
        """
        self._tokenizer.encode_special_tokens = not special
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no whole UTF-8 character become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Text of `ids` piece by piece, each as soon as its characters are complete."""
        stream = DecodeStream(skip_special_tokens=True)
        for token in ids:
            piece = stream.step(self._tokenizer, token)
            if piece is not None:
                yield piece

    def encode_chat(self, user: str, system: str = DEFAULT_SYSTEM) -> list[int]:
        """Token ids of a conversation that awaits the assistant's answer to `user`.

        The same ids as from the model's chat template, except that special tokens' names in the
        texts stay ordinary text.
        """
        ids = []
        for role, content in (("system", system), ("user", user)):
            ids += [self._start, *self.encode(f"{role}\n{content}"), self._end]
            ids += self.encode("\n")
        return ids + [self._start, *self.encode("assistant\n")]
