/* Numbers about a forward pass, defined as in the Python: shared/attention_utils.py (entropy), shared/grammar/scores.py
   (role scores), shared/toy_language.py (nearest words). */
"use strict";

const Statistics = (() => {

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  /* - sum p ln p in nats, with 0 ln 0 = 0: 0 for one key only, ln n for n equal keys. */
  const entropy = (weights) => weights.reduce((sum, p) => sum - (p > 0 ? p * Math.log(p) : 0), 0);

  /* Mean over the rows of one head of the entropy over its limit, ln(number of keys that the row may see). A row that
     sees fewer than two keys has no choice and is left out; NaN if no row has one. */
  function normalized_entropy(weights, causal, hidden = []) {
    const shares = [];
    weights.forEach((row, i) => {
      const visible = row.filter((_, j) => !(causal && j > i) && !hidden.includes(j)).length;
      if (visible >= 2) shares.push(entropy(row) / Math.log(visible));
    });
    return mean(shares);
  }

  /* Cross-entropy in nats, -ln p(target), without a detour over p, which may round to 0. */
  function loss(logits, target) {
    const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    return largest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - largest), 0)) - logits[target];
  }

  /* The k likeliest tokens, the likeliest first. */
  const top = (probabilities, k) =>
    Array.from(probabilities, (probability, token) => ({ token, probability }))
      .sort((a, b) => b.probability - a.probability)
      .slice(0, k);

  /* The key that gets the largest weight, the query's own position aside; the first of equals. */
  function attended(weights, own_position) {
    let best = own_position === 0 ? 1 : 0;
    for (let j = best + 1; j < weights.length; j++) if (j !== own_position && weights[j] > weights[best]) best = j;
    return best;
  }

  /* How often each head looks at a gold key of each relation: "relation|layer|head|direction" -> {asked, right}.
     "forward" follows the pairs of a sentence from their first word to the second, "backward" the other way. Counts are
     added to hits, so that it can be done a few sentences at a time. Positions that a reader hid belong to the reader's
     sentence and not to these. */
  function count_hits(model, sentences, levers, vocabulary, special, hits = new Map()) {
    const index = new Map(vocabulary.map((word, token) => [word, token]));
    const before = model.causal ? [special.start] : []; // tokens before the first word
    const after = model.causal ? [special.end] : [];
    for (const { words, relations } of sentences) {
      const tokens = [...before, ...words.map((word) => index.get(word)), ...after];
      const { layers } = Attention.forward(model, tokens, { ...levers, hidden: [] });
      for (const [relation, pairs] of Object.entries(relations)) {
        const shifted = pairs.map((pair) => pair.map((position) => position + before.length));
        const directions = { forward: shifted, backward: shifted.map(([from, to]) => [to, from]) };
        layers.forEach(({ weights }, layer) => weights.forEach((rows, head) => {
          for (const [direction, gold] of Object.entries(directions)) {
            const name = [relation, layer, head, direction].join("|");
            const count = hits.get(name) ?? { relation, layer, head, direction, asked: 0, right: 0 };
            for (const query of new Set(gold.map(([from]) => from))) { // one with several gold keys is asked once
              const key = attended(rows[query], query);
              count.asked += 1;
              count.right += gold.some(([from, to]) => from === query && to === key);
            }
            hits.set(name, count);
          }
        }));
      }
    }
    return hits;
  }

  /* Relation -> the head and direction that follow it best, and how often it is right. A relation that no sentence has
     is left out. */
  function best_heads(hits) {
    const best = {};
    for (const { relation, layer, head, direction, asked, right } of hits.values()) {
      const score = right / asked;
      if (asked > 0 && !(score <= best[relation]?.score)) best[relation] = { score, layer, head, direction };
    }
    return best;
  }

  /* How many letters two words share in common pieces: the longest piece, then the same to its left and right. */
  function shared_letters(a, b) {
    let [length, start_a, start_b] = [0, 0, 0];
    for (let i = 0; i < a.length; i++) {
      for (let j = 0; j < b.length; j++) {
        let n = 0;
        while (i + n < a.length && j + n < b.length && a[i + n] === b[j + n]) n++;
        if (n > length) [length, start_a, start_b] = [n, i, j];
      }
    }
    if (length === 0) return 0;
    return length + shared_letters(a.slice(0, start_a), b.slice(0, start_b)) +
      shared_letters(a.slice(start_a + length), b.slice(start_b + length));
  }

  /* The k known words most similar to a word, as Python's difflib.get_close_matches finds them (Ratcliff & Metzener
     1988): the share of letters in common pieces. Empty if no word is similar enough; 0.5 as in toy_language.tokenize. */
  function nearest_words(word, vocabulary, k = 3, cutoff = 0.5) {
    const similar = vocabulary
      .filter((known) => !known.startsWith("<"))
      .map((known) => ({ known, ratio: (2 * shared_letters(known, word)) / (known.length + word.length) }))
      .filter(({ ratio }) => ratio >= cutoff);
    similar.sort((a, b) => b.ratio - a.ratio || (a.known < b.known ? 1 : -1));
    return similar.slice(0, k).map(({ known }) => known);
  }

  return { entropy, normalized_entropy, loss, top, count_hits, best_heads, nearest_words };
})();
