"""N2NMN's layout policy: from a question to a layout, and to the words that each module is about.

An LSTM reads the question; another, which starts from where the first ended, writes the layout
token by token. At each step it attends to the question,

    p = softmax(v · tanh(W_a h + W_e e_s + b))    logits = W [h, Σ p_s e_s] + b    txt = Σ p_s x_s

where h is its state, e_s the state of the first LSTM at word s and x_s the embedding of that word.
The next token is chosen by the logits, and the module that it names is given txt.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.models.encoders import PAD, embed_tokens, question_lengths
from macnet.models.layers import Linear, can_use_triton, score_layer
from macnet.models.lstm import initialize_lstm, run_lstm_with_cells
from macnet.models.systems.layouts import TOKENS, count_outputs, valid_tokens
from macnet.models.systems.programs import choose, lstm_cell

GO = len(TOKENS)
"""The token before the first, which is never written."""
State = list[tuple[Tensor, Tensor]]
"""h and c (B, u) of each layer."""


class ReadQuestion(NamedTuple):
    """B questions, padded to S words."""

    words: Tensor  # (B, S, e): the embeddings x
    states: Tensor  # (B, S, u): the encoder's states e
    keys: Tensor  # (B, S, u): W_e e
    is_pad: Tensor  # (B, S)
    last: State


class Writing(NamedTuple):
    """B layouts of T tokens as the decoder writes them."""

    layouts: Tensor  # (B, T)
    logits: Tensor  # (B, T, 15): of each token; −∞ where only valid tokens are chosen among
    words: Tensor  # (B, T, S): the attention to the words at each token


class LSTMLayer(nn.Module):
    """A layer of an LSTM, which reads all words at once, or goes on step by step."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.weight_x = nn.Parameter(torch.empty(4 * units, inputs))
        self.weight_h = nn.Parameter(torch.empty(4 * units, units))
        self.bias = nn.Parameter(torch.zeros(4 * units))
        initialize_lstm(self.weight_x, self.weight_h, self.bias)

    def forward(
        self, x: Tensor, lengths: Tensor, start: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        # x: (B, S, inputs)   lengths: (B,)   start: h and c (B, u), 0 if None
        # → states (B, S, u), last state and last cell (B, u)
        weights = self.weight_x[None], self.weight_h[None], self.bias[None]
        return run_lstm_with_cells(x, lengths, *weights, start=start)

    def input_gates(self, x: Tensor) -> Tensor:
        """The inputs' part of the gates: (…, inputs) → (…, 4u)."""
        return F.linear(x, self.weight_x, self.bias)

    def step(self, gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """h and c (B, u) after a step with that inputs' part (B, 4u)."""
        return lstm_cell(gates + F.linear(h, self.weight_h), c)


def lstm_layers(inputs: int, units: int, layers: int) -> list[LSTMLayer]:
    """The layers of an LSTM."""
    stack = nn.ModuleList(LSTMLayer(units if k else inputs, units) for k in range(layers))
    return cast(list[LSTMLayer], stack)


class LayoutGenerator(nn.Module):
    """Question → layout, with attention to the words at each module."""

    def __init__(self, *, vocabulary: int, embedding: int, units: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PAD)
        self.encoder = lstm_layers(embedding, units, layers)
        self.token_embedding = nn.Embedding(len(TOKENS) + 1, embedding)  # the last is GO
        self.decoder = lstm_layers(embedding, units, layers)
        self.query = Linear(units, units)
        self.key = Linear(units, units, bias=False)  # W_a h has the bias of both
        self.score = score_layer(units)
        self.output = Linear(2 * units, len(TOKENS))
        for table in (self.embedding, self.token_embedding):
            nn.init.xavier_uniform_(table.weight)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0

    def read(self, questions: Tensor) -> ReadQuestion:
        """Read questions (B, S)."""
        lengths = question_lengths(questions)
        words = states = embed_tokens(self.embedding.weight, questions)
        last: State = []
        for layer in self.encoder:
            states, h, c = layer(states, lengths)
            last.append((h, c))
        is_pad = torch.arange(questions.shape[1], device=questions.device) >= lengths[:, None]
        return ReadQuestion(words, states, self.key(states), is_pad, last)

    def follow(self, question: ReadQuestion, layouts: Tensor, valid: Tensor | None) -> Writing:
        """Write given layouts (B, T): the logits of each token after those before it.

        `valid` (B, T, 15) are the tokens that are chosen among, all if None.
        """
        before = F.pad(layouts[:, :-1], (1, 0), value=GO)
        # A product, for on a GPU the gradient of one is faster than that of a lookup.
        is_token = before[..., None] == torch.arange(GO + 1, device=before.device)
        states = is_token.to(self.token_embedding.weight) @ self.token_embedding.weight
        lengths = torch.full_like(layouts[:, 0], layouts.shape[1])
        for layer, start in zip(self.decoder, question.last, strict=True):
            states = layer(states, lengths, start)[0]
        logits, words = self._attend(states, question)
        if valid is not None:
            logits = logits.masked_fill(~valid, -torch.inf)
        return Writing(layouts, logits, words)

    def write(self, question: ReadQuestion, steps: int, *, sample: bool) -> Writing:
        """Write layouts of T = `steps` tokens that can be executed: the most probable, or samples.

        The most probable is so token by token.
        """
        gates, state = self._token_gates(), question.last
        token = torch.full_like(question.is_pad[:, 0], GO, dtype=torch.int64)
        attentions = answers = torch.zeros_like(token)
        tokens, all_logits, all_words = [], [], []
        for t in range(steps):
            state = self._step(gates, token, state)
            logits, words = self._attend(state[-1][0][:, None], question)
            valid = valid_tokens(attentions, answers, steps - t)
            logits = logits.squeeze(1).masked_fill(~valid, -torch.inf)
            token = choose(logits, sample=sample)
            more_attentions, more_answers = count_outputs(token[:, None])
            attentions = attentions + more_attentions[:, 0]
            answers = answers + more_answers[:, 0]
            tokens.append(token)
            all_logits.append(logits)
            all_words.append(words)
        return Writing(torch.stack(tokens, 1), torch.stack(all_logits, 1), torch.cat(all_words, 1))

    def _token_gates(self) -> Tensor:
        """The first layer's inputs' part of the gates for each token: (16, 4u)."""
        return self.decoder[0].input_gates(self.token_embedding.weight)

    def _step(self, token_gates: Tensor, tokens: Tensor, state: State) -> State:
        """The state after a step with these tokens (B,)."""
        gates = token_gates[tokens]
        after: State = []
        for k, (layer, (h, c)) in enumerate(zip(self.decoder, state, strict=True)):
            if k:
                gates = layer.input_gates(after[-1][0])
            after.append(layer.step(gates, h, c))
        return after

    def _attend(self, h: Tensor, question: ReadQuestion) -> tuple[Tensor, Tensor]:
        """Logits (B, T, 15) and attention to the words (B, T, S) at states h (B, T, u)."""
        query, keys, units = self.query(h), question.keys, self.score.in_features
        if units % 16 == 0 and can_use_triton(query.device, query.dtype):
            from macnet.models.kernels.additive_attention import additive_scores

            scores = additive_scores(query, keys, self.score.weight[0])  # (B, T, S)
        else:
            scores = self.score(torch.tanh(query[:, :, None] + keys[:, None])).squeeze(-1)
        words = scores.masked_fill(question.is_pad[:, None], -torch.inf).softmax(-1)
        context = words.to(question.states.dtype) @ question.states  # (B, T, u)
        return self.output(torch.cat([h.to(context.dtype), context], -1)), words
