"""Correct solutions pass too if they look nothing like the reference."""

import pytest

from tests.support.course import check_body

SOLUTIONS = {
    "mlm.py:masked_lm_loss": """
        logits = logits.float().log_softmax(-1)
        total = sum(-logits[i, t] for i, t in enumerate(labels.tolist()) if t != -100)
        count = sum(t != -100 for t in labels.tolist()) if num_items_in_batch is None else num_items_in_batch
        return total / max(count, 1) + 0 * logits.sum()
    """,
    "mlm.py:masked_accuracy": """
        kept = labels >= 0
        n = kept.sum() if num_items_in_batch is None else num_items_in_batch
        return torch.where(kept, logits.max(dim=1).indices == labels, False).float().sum() / max(1, int(n))
    """,
    "mlm.py:TokenMasker.__post_init__": """
        special = {self.mask_token_id, *self.special_token_ids}
        self.is_special = torch.tensor([i in special for i in range(self.vocab_size)])
        self.ordinary_ids = torch.tensor([i for i in range(self.vocab_size) if i not in special])
    """,
    "mlm.py:TokenMasker.choose": """
        draw = self.rand(is_candidate)
        if word_ids is not None:
            draw = torch.stack([row[w.clamp(min=0)] for row, w in zip(draw, word_ids)])
        if not self.max_predictions_per_seq:
            return (draw > 1 - self.mlm_probability).logical_and(is_candidate)
        result = torch.zeros_like(is_candidate)
        counts = []
        for i in range(len(is_candidate)):
            candidates = is_candidate[i].nonzero().flatten()
            n = min(self.max_predictions_per_seq, max(1, round(self.mlm_probability * len(candidates))))
            counts.append(n)
            order = draw[i][candidates].argsort()
            result[i, candidates[order[:n]]] = True
        if word_ids is not None:
            return self.choose_words(is_candidate, word_ids, draw, torch.tensor(counts).float())
        return result
    """,
    "mlm.py:TokenMasker.__call__": """
        if not all(0 <= i < self.vocab_size for row in input_ids.tolist() for i in row):
            raise ValueError("ids")
        wrong = attention_mask is not None and attention_mask.shape != input_ids.shape
        if wrong or (attention_mask is not None and (attention_mask < 0).any()):
            raise ValueError("mask")
        a, b = self.mask_replace_prob, self.random_replace_prob
        case = torch.bucketize(self.rand(input_ids), torch.tensor([a, a + b]))
        random = self.ordinary_ids[
            (self.rand(input_ids) * len(self.ordinary_ids)).long()
        ].to(input_ids.dtype)
        ok = ~torch.isin(input_ids, self.is_special.nonzero().flatten())
        ok = ok if attention_mask is None else ok * attention_mask.bool()
        ok = ok if word_ids is None else ok * (word_ids != -1)
        chosen = self.choose(ok, word_ids)
        result = input_ids.clone()
        result[chosen & (case == 0)] = self.mask_token_id
        result[chosen & (case == 1)] = random[chosen & (case == 1)]
        labels = torch.full(input_ids.shape, -100)
        labels[chosen] = input_ids[chosen].long()
        return MaskedTokens(result, labels)
    """,
    "mlm.py:BertLMPredictionHead.forward": """
        return self.transform(hidden_states) @ embedding.T + self.bias
    """,
    "mlm.py:MaskedLM.forward": """
        x = self.encoder(input_ids, **encoder_inputs)
        if isinstance(x, tuple):
            x = x[0]
        E = self._embedding[0].weight
        if labels is None:
            return MaskedLMOutput(None, self.head(x, E), None)
        logits = self.head(x, E)[labels != -100]
        labels = labels[labels != -100]
        return MaskedLMOutput(masked_lm_loss(logits, labels, num_items_in_batch), logits, labels)
    """,
    "bert.py:BertEmbeddings.forward": """
        B, T = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(T).expand(B, T)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        e = self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(e + self.word_embeddings(input_ids)))
    """,
    "bert.py:BertSelfAttention.project": """
        B, T, D = x.shape
        H = self.num_attention_heads
        return tuple(layer(x).view(B, T, H, D // H).permute(0, 2, 1, 3) for layer in layers)
    """,
    "bert.py:BertSelfAttention.forward": """
        (q,) = self.project(query_states, self.query)
        k, v = self.project(hidden_states, self.key, self.value)
        scores = torch.einsum("bhpd,bhtd->bhpt", q, k) * q.shape[-1] ** -0.5
        if attention_mask is not None:
            scores = torch.where(attention_mask, scores, torch.tensor(-1e30))
        w = torch.softmax(scores, -1)
        out = torch.einsum("bhpt,bhtd->bphd", self.dropout(w), v)
        return out.reshape(*out.shape[:2], -1), w if output_attentions else None
    """,
    "bert.py:BertOutput.forward": """
        x = self.dense(hidden_states)
        x = self.dropout(x)
        return self.LayerNorm(x + residual)
    """,
    "bert.py:BertIntermediate.forward": """
        x = self.dense(hidden_states)
        return x * 0.5 * (1 + torch.erf(x / 2**0.5))
    """,
    "bert.py:BertEncoder.forward": """
        weights = ()
        *most, last = self.layer
        for block in most:
            hidden_states, w = block(hidden_states, attention_mask, output_attentions)
            weights += (w,)
        if output_positions is None:
            hidden_states, w = last(hidden_states, attention_mask, output_attentions)
        else:
            chosen = torch.stack([h[p] for h, p in zip(hidden_states, output_positions)])
            hidden_states, w = last(hidden_states, attention_mask, output_attentions, chosen)
        return hidden_states, (*weights, w) if output_attentions else None
    """,
    "bert.py:init_weights": """
        if type(module) in (nn.Linear, nn.Embedding):
            with torch.no_grad():
                module.weight.normal_(0, std)
                while (bad := module.weight.abs() > 2 * std).any():
                    module.weight[bad] = torch.randn(int(bad.sum())) * std
                if getattr(module, "bias", None) is not None:
                    module.bias.zero_()
    """,
    "data/windows.py:random_windows": """
        ids, positions = [], []
        for _ in range(B):
            o = int(torch.randint(0, max_position_embeddings - T + 1, (), generator=generator))
            s = int(torch.randint(0, len(token_ids) - T + 1, (), generator=generator))
            ids.append(token_ids[s : s + T])
            positions.append(torch.arange(o, o + T))
        return Batch(torch.stack(ids), torch.stack(positions))
    """,
    "data/curriculum.py:length_at": """
        end = 0.0
        for stage in stages:
            end += stage.fraction
            if progress < end:
                break
        return stage.length
    """,
    "training/optimization.py:TrainingArguments.learning_rate_at": """
        if progress < self.warmup_ratio:
            return self.learning_rate * progress / self.warmup_ratio
        return max(0, self.learning_rate * (1 - progress) / (1 - self.warmup_ratio))
    """,
    "training/optimization.py:block_matrices": """
        result = []
        for name, p in model.named_parameters():
            if "layer" in name and p.ndim == 2 and p.requires_grad:
                result.append(p)
        return result
    """,
    "training/evaluation.py:evaluate_masked_lm": """
        trainer.model.eval()
        N, T = held_out.input_ids.shape
        first = [i for i in range(N) if (held_out.labels[i] >= 0).any()] + [0]
        N = N if tokens is None else max(min(N, max(1, tokens // T)), first[0] + 1)
        losses, right = [], []
        for i in range(N):
            with trainer.autocast():
                _, logits, labels = trainer.model(held_out[0][i : i + 1], held_out[1][i : i + 1])
            losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
            right.append((logits.argmax(-1) == labels).float())
        trainer.model.train()
        n = max(1, len(torch.cat(losses)))
        return {"loss": torch.cat(losses).sum().item() / n, "accuracy": torch.cat(right).sum().item() / n}
    """,
    "nsp.py:PairMaker.elsewhere": """
        others = [d for i, d in enumerate(self.documents) if i != index]
        document = generator.choice(others)
        start = generator.choice(range(len(document)))
        tokens = list(document[start])
        while start + 1 < len(document) and len(tokens) < length:
            start += 1
            tokens = tokens + list(document[start])
        return tokens
    """,
    "nsp.py:PairMaker.assemble": """
        a, b = list(a), list(b)
        while len(a) + len(b) + 3 > self.max_length:
            side = b if len(b) >= len(a) else a
            if generator.choice([True, False]):
                del side[0]
            else:
                del side[-1]
        ids = [self.cls_token_id] + a + [self.sep_token_id] + b + [self.sep_token_id]
        types = [int(i >= len(a) + 2) for i in range(len(ids))]
        return SentencePair(ids, types, label)
    """,
    "nsp.py:collate": """
        from torch.nn.utils.rnn import pad_sequence
        ids = [torch.tensor(p.input_ids) for p in pairs]
        return {
            "input_ids": pad_sequence(ids, True, pad_token_id),
            "attention_mask": pad_sequence([torch.ones_like(i) for i in ids], True),
            "token_type_ids": pad_sequence([torch.tensor(p.token_type_ids) for p in pairs], True),
            "next_sentence_label": torch.tensor([p.next_sentence_label for p in pairs]),
        }
    """,
    "nsp.py:next_sentence_loss": """
        logp = logits.float().log_softmax(-1)
        kept = labels != -100
        n = max(1, int(kept.sum())) if num_pairs_in_batch is None else num_pairs_in_batch
        return -logp[kept].gather(1, labels[kept, None]).sum() / n
    """,
    "heads.py:BertForTokenClassification.forward": """
        x = self.bert(input_ids, **inputs)[0]
        logits = self.classifier(self.dropout(x)).float()
        if labels is None:
            return ClassifierOutput(None, logits)
        total = F.cross_entropy(logits.transpose(1, 2), labels, reduction="sum")
        return ClassifierOutput(total / (labels != -100).sum().clamp(min=1), logits)
    """,
    "modern.py:rotary_angles": """
        i = torch.arange(head_dim // 2)
        a = torch.einsum("bt,i->bti", position_ids.float(), 1 / theta ** (2 * i / head_dim))[:, None, None]
        return a.cos().repeat(1, 1, 1, 1, 2), torch.cat([-a.sin(), a.sin()], -1)
    """,
    "modern.py:rotate": """
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([b, a], -1) * sin
    """,
    "modern.py:attend": """
        return F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_prob)
    """,
    "modern.py:ModernBertPredictionHead.forward": """
        x = F.gelu(self.dense(x))
        return self.norm(x)
    """,
    "modern.py:ModernBertMLP.forward": """
        h = self.Wi(x)
        I = h.shape[-1] // 2
        return self.Wo(self.drop(h[..., I:] * F.gelu(h[..., :I])))
    """,
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_another_solution_passes(name: str) -> None:
    verdict = check_body(name, SOLUTIONS[name])
    assert verdict.passed, verdict
