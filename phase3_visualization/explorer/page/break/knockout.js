// Wager 3: the model whole, without the head that a hidden verb needs, and without the head that is needed least.
"use strict";

const Knockout = (() => {
  const { element, fixed } = View;
  const { pane, panes, bar, guesses, here, loss } = Stage;
  const CAN_GO = 0.01; // nats

  function draw(box, { words, hidden, needed, spare, rises }, { app, language }) {
    const model = app.models.get("both sides");
    const { index, vocabulary, special } = language;
    const tokens = words.map((word, i) => (i === hidden ? special.mask : index.get(word)));
    const truth = index.get(words[hidden]);
    const called = ([layer, head]) => View.headName(model, layer, head);
    const the = (head) => called(head).replace(View.NO_ROLE, "the head without a role"); // in a sentence
    const without = (head) => {
      const levers = head ? { removed: [head.join(".")] } : {};
      return Attention.softmax(Attention.forward(model, tokens, levers).logits[hidden]);
    };
    const [whole, blind, spared] = [null, needed, spare].map(without);
    const titles = ["the whole model", `without ${the(needed)}`, `without ${the(spare)}`];
    const three = [whole, blind, spared].map((found, i) => pane(titles[i], ...guesses(found, vocabulary, truth)));

    const most = Math.max(...rises.map(({ rise }) => rise));
    const all = [...rises].sort((a, b) => a.rise - b.rise).map(({ head, rise, at_most }) =>
      bar(called(head), rise / most, fixed(rise, 3), at_most < CAN_GO ? "changed" : "accent"));
    const sentence = words.map((word, i) => (i === hidden ? "▢" : word)).join(" ");
    const go = rises.filter(({ at_most }) => at_most < CAN_GO).length;
    const cost = (found) => fixed(loss(found[truth]) - loss(whole[truth]));
    const text = `in this sentence, chosen because its verb loses much, “${words[hidden]}” loses ${cost(blind)} nats ` +
      `without ${the(needed)}, and ${cost(spared)} without ${the(spare)}. ${go || "None"} of the ` +
      `${rises.length} heads can go.`;
    box.append(here(text, go === 0),
      element("p", { class: "sentence" }, sentence),
      element("p", { class: "quiet" }, "What stands in the gap? One head is the one that hidden verbs need most, the " +
        "other the one that all hidden words need least."),
      panes(...three),
      element("div", { class: "wide" }, pane("What hidden words lose without each head, in nats", ...all)));
  }

  return { draw };
})();
