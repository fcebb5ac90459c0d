/* Training: hide some words of 64 sentences, guess them, take the gradient, take a step; again.

   The objective, the rates and the sentences are those of shared/training.py, which also says why. A step is cut into
   parts (yield), so that a pause or a paint need not wait for the whole of it. */
"use strict";

/* One step down the gradients, as shared/training.py does it: Muon for the matrices of the blocks, AdamW for the rest.

   The gradient of a weight matrix is mostly a few strong directions. Muon keeps the directions and makes each about
   equally long (Jordan et al. 2024), which shortens the time in which attention seems to learn nothing. */
const Optimizer = (() => {
  const { transposed } = Matmul;
  const MOMENTUM = 0.85;
  const [BETA_1, BETA_2, EPSILON] = [0.9, 0.95, 1e-8];

  const by_muon = (name, { value }) => name.startsWith("blocks.") && value.rows > 1;

  /* Beside each parameter room for the means that its optimiser keeps. */
  function create({ parameters, space }) {
    const all = Object.entries(parameters).map(([name, { value, gradient }]) => {
      const muon = by_muon(name, { value });
      const means = Array.from({ length: muon ? 1 : 2 }, () => space.take(value.rows, value.cols));
      return { muon, value, gradient, means };
    });
    return { space, all, done: 0 };
  }

  /* Share of the highest rate at a step from 0 to steps - 1: up, then down, both along half a wave (Smith 2018). */
  function one_cycle(step, steps, up) {
    const rising = (step + 1) / (up * steps);
    const phase = rising <= 1 ? rising : 1 + (step + 1 - up * steps) / (steps + 1 - up * steps);
    return (1 - Math.cos(Math.PI * phase)) / 2;
  }

  /* Of x = U S Vᵀ only U Vᵀ, roughly, by five steps of a Newton-Schulz iteration, which needs products alone:
     x <- 3.4445 x + (2.0315 s s - 4.7750 s) x  with  s = x xᵀ */
  function orthogonal(space, x) {
    if (x.rows > x.cols) return transposed(orthogonal(space, space.packed(transposed(x))));
    const size = Math.max(Math.sqrt(x.data.reduce((sum, value) => sum + value * value, 0)), 1e-7);
    let now = space.take(x.rows, x.cols);
    x.data.forEach((value, i) => { now.data[i] = value / size; });
    for (let round = 0; round < 5; round++) {
      const square = space.multiply(now, transposed(now), space.take(x.rows, x.rows));
      const mixed = space.multiply(square, square, space.take(x.rows, x.rows));
      for (let i = 0; i < mixed.data.length; i++) mixed.data[i] = 2.0315 * mixed.data[i] - 4.775 * square.data[i];
      const next = space.multiply(mixed, now, space.take(x.rows, x.cols));
      for (let i = 0; i < next.data.length; i++) next.data[i] += 3.4445 * now.data[i];
      now = next;
    }
    return now;
  }

  /* mean <- the mean of the gradients so far;  value <- (1 - rate decay) value - rate size orthogonal(mean ahead) */
  function muon_step(space, { value, gradient, means: [mean] }, rate, decay) {
    const before = space.mark();
    const ahead = space.take(value.rows, value.cols); // the newest gradient counts once more (Nesterov)
    for (let i = 0; i < ahead.data.length; i++) {
      mean.data[i] += (1 - MOMENTUM) * (gradient.data[i] - mean.data[i]);
      ahead.data[i] = gradient.data[i] + MOMENTUM * (mean.data[i] - gradient.data[i]);
    }
    const direction = orthogonal(space, ahead);
    const far = rate * Math.sqrt(Math.max(1, value.rows / value.cols));
    for (let i = 0; i < value.rows; i++) {
      for (let j = 0; j < value.cols; j++) {
        const along = space.numbers[direction.start + i * direction.row + j * direction.col];
        value.data[i * value.cols + j] = (1 - rate * decay) * value.data[i * value.cols + j] - far * along;
      }
    }
    space.release(before);
  }

  /* value <- (1 - rate decay) value - rate mean / (sqrt(mean of squares) + epsilon), both means corrected for their
     start at 0 */
  function adamw_step({ value, gradient, means: [mean, squares] }, rate, decay, steps) {
    const [start_1, start_2] = [1 - BETA_1 ** steps, 1 - BETA_2 ** steps];
    for (let i = 0; i < value.data.length; i++) {
      const g = gradient.data[i];
      mean.data[i] += (1 - BETA_1) * (g - mean.data[i]);
      squares.data[i] = BETA_2 * squares.data[i] + (1 - BETA_2) * g * g;
      const far = mean.data[i] / start_1 / (Math.sqrt(squares.data[i] / start_2) + EPSILON);
      value.data[i] = (1 - rate * decay) * value.data[i] - rate * far;
    }
  }

  /* share: of the highest rates, from one_cycle. */
  function step(optimizer, { matrix_rate, rate, matrix_decay, decay }, share) {
    optimizer.done += 1;
    for (const parameter of optimizer.all) {
      if (parameter.muon) muon_step(optimizer.space, parameter, share * matrix_rate, matrix_decay);
      else adamw_step(parameter, share * rate, decay, optimizer.done);
    }
  }

  return { create, one_cycle, step };
})();

/* The objective, a batch, and a step of a run. */
const Training = (() => {
  const AT_ONCE = 50; // sentences
  const ROOM = 6e6; // numbers: the parameters, and all that a step of 64 sentences of 18 words computes

  /* Even numbers from 0 to 1, always the same for a seed (mulberry32). */
  function random_numbers(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  /* Mean 0 and variance 1 (Box & Muller 1958). */
  const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

  /* Numbers as PyTorch draws them: words small beside the positions, an nn.Linear even up to 1 / sqrt(inputs). */
  function draw_start({ parameters }, random) {
    for (const [name, { value }] of Object.entries(parameters)) {
      const of_linear = parameters[name.replace(/bias$/, "weight")];
      if (name === "embedding.weight") value.data.forEach((_, i) => { value.data[i] = 0.2 * normal(random); });
      else if (name.includes("norm")) value.data.fill(name.endsWith("weight") ? 1 : 0);
      else if (name !== "output_bias") {
        const limit = 1 / Math.sqrt(of_linear.value.cols);
        value.data.forEach((_, i) => { value.data[i] = limit * (2 * random() - 1); });
      }
    }
  }

  /* One byte a word, <pad> after each sentence -> arrays of tokens. */
  function unpack(text, pad) {
    const bytes = Packed.bytes(text);
    const sentences = [];
    for (let start = 0; start < bytes.length;) {
      const end = bytes.indexOf(pad, start);
      sentences.push(bytes.subarray(start, end));
      start = end + 1;
    }
    return sentences;
  }

  /* Sentences one after the other, without padding. */
  function together(sentences) {
    const tokens = Int32Array.from(sentences.flatMap((sentence) => [...sentence]));
    let start = 0;
    return {
      tokens,
      sentences: sentences.map(({ length }) => ({ start: (start += length) - length, length })),
    };
  }

  /* Of the words chosen for prediction some stay, some are swapped for any word, and the rest are hidden. */
  function hide({ tokens, sentences }, { chosen: share, kept, swapped, mask, first_word, num_words }, random) {
    const seen = tokens.slice();
    const chosen = [...tokens.keys()].filter(() => random() < share);
    for (const position of chosen) {
      const fate = random();
      if (fate < swapped) seen[position] = first_word + Math.floor(random() * (num_words - first_word));
      else if (fate >= kept + swapped) seen[position] = mask;
    }
    return { tokens: seen, sentences, chosen, targets: chosen.map((position) => tokens[position]) };
  }

  /* A new model that has not seen anything. corpus: arrays of tokens; recipe: as growing.py writes it, and the
     parameters: name -> {shape}. */
  function start(recipe, corpus, seed) {
    const model = Network.create(recipe, Matmul.open_space(ROOM), true);
    const optimizer = Optimizer.create(model);
    const random = random_numbers(seed);
    draw_start(model, random);
    return { recipe, corpus, model, optimizer, random, step: 0, losses: [] };
  }

  /* The gradients of a batch -> its loss. */
  function* gradients(model, batch) {
    const before = model.space.mark();
    const found = Network.forward(model, batch);
    const predicted = Network.predict(model, batch, found.output);
    yield;
    Network.backward(model, batch, found, predicted);
    model.space.release(before);
    return predicted.loss;
  }

  function* step(run) {
    const { recipe, corpus, random } = run;
    const drawn = Array.from({ length: recipe.batch_size }, () => corpus[Math.floor(random() * corpus.length)]);
    const loss = yield* gradients(run.model, hide(together(drawn), recipe, random));
    yield;
    Optimizer.step(run.optimizer, recipe, Optimizer.one_cycle(run.step, recipe.steps, recipe.up));
    run.losses.push(loss);
    run.step += 1;
  }

  /* The mean loss on held-out sentences, in each of which one word is hidden: in sentence n the one at n % length. */
  function* held_out_loss({ recipe, model, held_out }) {
    let sum = 0;
    for (let first = 0; first < held_out.length; first += AT_ONCE) {
      const some = held_out.slice(first, first + AT_ONCE).map(({ tokens }) => tokens);
      const batch = together(some);
      const chosen = batch.sentences.map(({ start, length }, n) => start + ((first + n) % length));
      const targets = chosen.map((position) => batch.tokens[position]);
      for (const position of chosen) batch.tokens[position] = recipe.mask;
      const before = model.space.mark();
      sum += some.length * Network.predict(model, { chosen, targets }, Network.forward(model, batch).output).loss;
      model.space.release(before);
      yield;
    }
    return sum / held_out.length;
  }

  return { start, step, gradients, hide, unpack, together, held_out_loss };
})();
