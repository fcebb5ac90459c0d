/* Training: hide some words of 64 sentences, guess them, take the gradient, take a step; again.

   The objective, the rates and the sentences are those of shared/training.py, which also says why. A step is cut into
   parts (yield), so that a pause or a paint need not wait for the whole of it. */
"use strict";

const Training = (() => {
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
  function unpack(base64, pad) {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
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

  /* A new model that has not seen anything. corpus: arrays of tokens; recipe: as growing.py writes it. */
  function start(recipe, corpus, seed) {
    const model = Network.create(recipe, Matmul.open_space(ROOM));
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

  return { start, step, gradients, hide, unpack, together };
})();
