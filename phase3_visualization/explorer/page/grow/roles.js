/* What does each head do, by the rules of shared/grammar/roles.py, on the same held-out sentences?

       position   its largest weight has the same offset in 0.9 of the rows, or lies on the first word in 0.9 of them
       relation   its largest weight, itself aside, is the gold word 10 points more often than any baseline's

   A name found on one half of the sentences counts only if the other half gives it, too. The baselines (the best fixed
   offset, the best untrained head) are measured by the Python; here a head is held against them. */
"use strict";

const Roles = (() => {
  const SENTENCES_AT_ONCE = 50;

  /* The gold of sentence n for each relation and direction that the rules name: query -> its gold keys. */
  function gold_of(pairs_of, n, { relations }) {
    return relations.map(({ relation, backward }) => {
      const wanted = new Map();
      const flat = pairs_of[relation][n];
      for (let i = 0; i < flat.length; i += 2) {
        const [query, key] = backward ? [flat[i + 1], flat[i]] : [flat[i], flat[i + 1]];
        wanted.set(query, [...(wanted.get(query) ?? []), key]);
      }
      return wanted;
    });
  }

  /* Held-out sentences with their gold, ready to be asked often. */
  const prepare = (sentences, gold, [rule]) =>
    sentences.map((tokens, n) => ({ tokens, gold: gold_of(gold, n, rule) }));

  function largest(row, aside = -1) {
    let best = aside === 0 ? 1 : 0;
    for (let j = best + 1; j < row.length; j++) if (j !== aside && row[j] > row[best]) best = j;
    return best;
  }

  const tally = (rules) => rules.map(() => ({ asked: 0, right: 0 }));
  const share = ({ asked, right }) => right / asked;

  /* Adds the rows of one head on one sentence. No row has a key outside its sentence, nor is the first row asked
     whether it looks at the first word. */
  function count({ positions, relations }, rule, weights, gold) {
    for (let i = 0; i < weights.rows; i++) {
      const row = Pieces.row(weights, i);
      const key = largest(row);
      rule.positions.forEach(({ offset }, p) => {
        const place = offset ?? -i; // without an offset: the first word
        if (i + place < 0 || i + place >= weights.rows || (offset === null && i === 0)) return;
        positions[p].asked += 1;
        positions[p].right += key === i + place;
      });
      const other = largest(row, i);
      gold.forEach((wanted, r) => {
        if (!wanted.has(i)) return;
        relations[r].asked += 1;
        relations[r].right += wanted.get(i).includes(other);
      });
    }
  }

  /* By how much each rule of a kind is passed; below 0 it is not. */
  const margins = (tallies, rules) => tallies.map((found, r) => share(found) - rules[r].bar);

  /* The name of one head from its tallies on both halves, or null; a position comes before a relation. */
  function name_of(halves, rules) {
    for (const kind of ["positions", "relations"]) {
      const [naming, scoring] = halves.map((half, n) => margins(half[kind], rules[n][kind]));
      const best = naming.indexOf(Math.max(...naming));
      if (Math.min(naming[best], scoring[best]) >= 0) return rules[0][kind][best].name;
    }
    return null;
  }

  /* [layer][head] -> name. Every other sentence names, the rest must agree. */
  function* names(model, held_out, rules) {
    const tallies = Array.from({ length: model.num_layers }, () => Array.from({ length: model.num_heads }, () =>
      rules.map(({ positions, relations }) => ({ positions: tally(positions), relations: tally(relations) }))));
    for (let at = 0; at < held_out.length; at += SENTENCES_AT_ONCE) {
      const some = held_out.slice(at, at + SENTENCES_AT_ONCE);
      const before = model.space.mark();
      const { layers } = Network.forward(model, Training.together(some.map(({ tokens }) => tokens)));
      layers.forEach(({ weights }, layer) => weights.forEach((of_heads, n) => of_heads.forEach((w, head) => {
        const half = (at + n) % 2;
        count(tallies[layer][head][half], rules[half], w, some[n].gold);
      })));
      model.space.release(before);
      yield;
    }
    return tallies.map((heads) => heads.map((halves) => name_of(halves, rules)));
  }

  return { prepare, names };
})();
