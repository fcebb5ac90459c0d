/* What does each head do, by the rules of shared/grammar/roles.py, on the same held-out sentences? A position, a relation,
   or a column. The baselines (the best fixed offset, the best untrained head) are measured by the Python; here a head is
   held against them, and against the words without the relation. */
"use strict";

const Roles = (() => {
  const SENTENCES_AT_ONCE = 50;

  /* The gold of sentence n for each relation and direction that the rules name: query -> its keys; and all keys. */
  function gold_of(pairs_of, n, { relations }) {
    return relations.map(({ relation, backward }) => {
      const wanted = new Map();
      const flat = pairs_of[relation][n];
      for (let i = 0; i < flat.length; i += 2) {
        const [query, key] = backward ? [flat[i + 1], flat[i]] : [flat[i], flat[i + 1]];
        wanted.set(query, [...(wanted.get(query) ?? []), key]);
      }
      return { wanted, keys: [...new Set([...wanted.values()].flat())] };
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
  function count({ positions, relations, others }, rule, weights, gold) {
    for (let i = 0; i < weights.rows; i++) {
      const row = Pieces.row(weights, i);
      const key = largest(row);
      rule.positions.forEach(({ place }, p) => {
        const offset = place === "first" ? -i : place;
        if (i + offset < 0 || i + offset >= weights.rows || (place === "first" && i === 0)) return;
        positions[p].asked += 1;
        positions[p].right += key === i + offset;
      });
      const other = largest(row, i);
      gold.forEach(({ wanted, keys }, r) => {
        const own = wanted.get(i) ?? [];
        relations[r].asked += wanted.has(i);
        relations[r].right += own.includes(other);
        const foreign = keys.filter((key) => key !== i && !own.includes(key));
        others[r].asked += foreign.length;
        others[r].right += foreign.includes(other);
      });
    }
  }

  /* By how much each rule is passed, kind by kind; below 0 it is not. */
  const margins = ({ positions, relations, others }, rule) => [
    positions.map((found, p) => share(found) - rule.positions[p].bar),
    relations.map((found, r) => share(found) - Math.max(rule.relations[r].bar, 2 * share(others[r]))),
    rule.columns.map(({ of, bar }) => share(others[of]) - bar),
  ];

  /* Of the rules of one kind that both halves pass the one that the half that names passes by most, or -1. */
  function best_of(naming, scoring) {
    let best = -1;
    naming.forEach((margin, at) => {
      const passed = margin >= 0 && scoring[at] >= 0;
      if (passed && (best < 0 || margin > naming[best])) best = at;
    });
    return best;
  }

  /* One head from its tallies on both halves: its role or null, the share of its own words that look where the role
     says, and for a relation the share of the others that look there, too. A position comes first, a column last. */
  function head_of(halves, rules) {
    const [naming, scoring] = halves.map((half, n) => margins(half, rules[n]));
    const best = naming.map((of_kind, kind) => best_of(of_kind, scoring[kind]));
    const kind = best.findIndex((at) => at >= 0);
    if (kind < 0) return { role: null, own: null, others: null };
    const [{ positions, relations, others }, at] = [halves[1], best[kind]];
    const rule = rules[0][["positions", "relations", "columns"][kind]][at];
    const own = [positions, relations, others][kind][kind === 2 ? rule.of : at];
    return { role: rule.name, own: share(own), others: kind === 1 ? share(others[at]) : null };
  }

  /* [layer][head] -> what head_of says. Every other sentence names, the rest must agree. */
  function* heads(model, held_out, rules) {
    const tallies = Array.from({ length: model.num_layers }, () => Array.from({ length: model.num_heads }, () =>
      rules.map((r) => ({ positions: tally(r.positions), relations: tally(r.relations), others: tally(r.relations) }))));
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
    return tallies.map((heads) => heads.map((halves) => head_of(halves, rules)));
  }

  return { prepare, heads, head_of };
})();
