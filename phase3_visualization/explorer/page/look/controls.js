// The levers on the screen: every control shows the state, so that a linked view opens with its levers pulled.
"use strict";

const Controls = (() => {
  const { byId, element, fixed, headName } = View;

  function draw(model, state) {
    const d_k = model.d_model / model.num_heads;
    const divisor = Levers.divisorOf(model, state);
    byId("causal").checked = Levers.isCausal(model, state);
    byId("scaled").checked = divisor === Math.sqrt(d_k);
    byId("root").textContent = `√d_k = √${d_k} = ${fixed(Math.sqrt(d_k))}`;
    if (document.activeElement !== byId("divisor")) byId("divisor").value = Number(divisor.toFixed(3));
    byId("divisor-slider").value = Math.log2(divisor);
    byId("divisor-slider").setAttribute("aria-valuetext", fixed(divisor));
    byId("removed-note").textContent = state.removed.length
      ? `Knocked out: ${state.removed.map((name) => headName(...name.split("."))).join("; ")}.`
      : "Knock out a head: with the buttons under the small maps.";
    byId("restore").disabled = state.removed.length === 0;
    drawWords(model, state);
    byId("temperature").value = state.temperature;
    const limit = state.temperature === 0 ? ": the likeliest takes all" : "";
    byId("temperature-note").textContent = fixed(state.temperature, 1) + limit;
    byId("reset").disabled = Levers.active(state).length === 0;
  }

  function drawWords(model, state) {
    const position = (word) => Levers.position(model, state, word);
    const name = (word) => `${position(word)} ${word < 0 ? "<start>" : state.words[word]}`;
    const hidden = state.hidden.includes(state.query);
    byId("hide").textContent = `${hidden ? "show" : "hide"} "${name(state.query)}"`;
    byId("hide").setAttribute("aria-pressed", hidden);
    const how = model.causal ? "no word may look at it" : "the model reads <mask> instead";
    byId("hidden-note").textContent = state.hidden.length ? `hidden: ${state.hidden.map(name).join(", ")}` : how;
    byId("swap-word").textContent = name(state.query);
    const others = Levers.orderOf(state).filter((word) => word !== state.query);
    byId("swap-with").replaceChildren(...others.map((word) => element("option", { value: word }, name(word))));
    const next = Levers.wordAt(model, state, position(state.query) + 1) ?? others.at(-1);
    if (next !== undefined) byId("swap-with").value = next;
    byId("swap").disabled = byId("swap-with").disabled = state.query < 0 || others.length === 0;
    byId("unswap").disabled = state.order === null;
  }

  return { draw };
})();
