"use strict";
// The page is whole without this. It moves marks that Python placed, compares stored latencies with two typed limits, and
// divides a price and watts by measured tokens/s, and a peak by a measured rate; it computes no latency and no verdict of LoadGen.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const kinds = Object.keys(data.axes);
  const find = (id) => document.getElementById(id);
  const every = (css) => [...document.querySelectorAll(css)];
  const marks = every("svg.mark");
  const fields = [...kinds.map((kind) => `my-${kind}`), "peak", "price", "watts"].map(find).filter(Boolean);
  const lowest = data.tests.reduce((low, test) => (test.load < low.load ? test : low));
  const columns = [["name", "test"], ...data.columns];
  const read = (test, key) => key in test ? test[key] : test.figures[key];
  const at = (test, kind) => test.figures[`${kind}_${point}_ms`];
  const few = (test, key) => test.few && key.endsWith("_p99_ms"); // the p99 of few is their slowest
  let point = "p99";
  document.documentElement.classList.add("js");
  if (matchMedia("(max-width: 560px)").matches) every("details.table").forEach((fold) => { fold.open = false; });

  // Four significant digits, whole from 1,000 on; a dash for what is not known.
  const number = (x) => x == null || !Number.isFinite(x) ? "–"
    : x.toLocaleString("en-US", Math.abs(x) >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
  const positive = (id) => { const value = parseFloat(find(id)?.value); return value > 0 ? value : null; };
  const limit = (kind) => positive(`my-${kind}`);

  // The kinds of latency that a test does not keep; one that is not known is not kept. (null <= 2000 would be true.)
  const broken = (test) => kinds.filter((kind) => limit(kind) != null)
    .filter((kind) => at(test, kind) == null || at(test, kind) > limit(kind));
  const unknown = (test, over) => over.some((kind) => at(test, kind) == null);

  // The machines that a peak takes, each filled to a share of its rate.
  function replicas({ figures }) {
    const peak = positive("peak"), each = data.share * figures.samples_per_sec, count = Math.ceil(peak / each - 1e-9);
    return peak && each ? ` A peak of ${number(peak)} request${peak === 1 ? "" : "s"}/s needs ${number(count)} replica${count > 1 ? "s" : ""}, each with ${number(each)} requests/s (${100 * data.share} % of its rate).` : "";
  }

  // Of the measured loads that may be an answer and keep the limits, a full test before a probe, then the most gain.
  function answer() {
    const kept = data.tests.filter((test) => test.may_be_best && !broken(test).length);
    const best = kept.reduce((most, test) => (most && (most.is_full - test.is_full || most.gain - test.gain) >= 0 ? most : test), null);
    const typed = kinds.filter((kind) => limit(kind) != null).map((kind) => `${kind.toUpperCase()} ${number(limit(kind))}`);
    const under = typed.length ? `${point} within ${typed.join(" and ")} ms` : "without a limit";
    const word = document.createElement("span");
    word.className = `word ${!best ? "bad" : best.is_full && !best.doubt ? "good" : "care"}`;
    const how = best && !best.is_full ? ", by a probe alone" : data.tests.every((test) => test.is_full) ? "" : " among the full tests";
    word.textContent = !best ? "No test that counts is within these limits" : typed.length && best.doubt ? "Not judged, the machine was busy:"
      : `${typed.length ? "Best within these limits" : "Best test that counts"}${how}:`;
    find("answer").replaceChildren(word, best ? ` ${best.name}, with ${best.speed} (${under}).${replicas(best)}`
      : ` (${under}); the lowest load that was measured is ${lowest.name}.`);
    data.tests.forEach((test, i) => {
      const over = broken(test), cell = find(`kept-${i}`), unsure = unknown(test, over);
      marks.filter((mark) => +mark.dataset.i === i).forEach((mark) => {
        mark.classList.toggle("out", mark.classList.contains("held") && over.length > 0);
        mark.querySelector(".name").style.display = test === best ? "inline" : "none";
      });
      if (!cell) return;
      cell.className = `word ${!typed.length || unsure ? "none" : over.length ? "bad" : test.doubt ? "care" : "good"}`;
      cell.textContent = !typed.length ? "no limits" : unsure ? "not recorded"
        : over.length ? `over ${over.join(", ").toUpperCase()}` : test.doubt || "within";
    });
  }

  function draw() {
    marks.forEach((mark) => {
      const { kind, i } = mark.dataset, test = data.tests[i], y = mark.dataset[point];
      mark.style.display = y === undefined ? "none" : "";
      if (y === undefined) return;
      const words = `${test.name}: ${test.few && point === "p99" ? `slowest ${kind.toUpperCase()}` : `${kind.toUpperCase()} ${point}`} ${number(at(test, kind))} ms, ${test.standing}`;
      mark.setAttribute("y", y);
      mark.setAttribute("aria-label", words);
      mark.querySelector("title").textContent = words;
      mark.querySelector(".name").textContent = number(at(test, kind));
    });
    kinds.forEach((kind) => {
      const axis = data.axes[kind], mine = limit(kind), group = find(`mine-${kind}`);
      const share = axis.is_log ? Math.log(mine / axis.low) / Math.log(axis.high / axis.low) : (mine - axis.low) / (axis.high - axis.low);
      const shown = mine != null && mine !== axis.limit && share > 0 && share < 1;
      group.style.display = shown ? "inline" : "none";
      if (!shown) return;
      const y = 250 * (1 - share), [line, text] = group.children;
      line.setAttribute("y1", y);
      line.setAttribute("y2", y);
      text.setAttribute("y", y - 5);
      text.textContent = `yours ${number(mine)} ms`;
    });
  }

  const money = (test) => positive("price") && test.figures.tokens_per_sec ? (1e6 * positive("price")) / 3600 / test.figures.tokens_per_sec : null;
  function energy(test) { // as counted, while nobody typed other watts
    const watts = positive("watts");
    if (watts && watts !== parseFloat(find("watts").defaultValue)) return test.figures.tokens_per_sec ? (1e6 * watts) / test.figures.tokens_per_sec : null;
    return test.figures.joules_per_output_token == null ? null : 1e6 * test.figures.joules_per_output_token;
  }

  function show() {
    const own = data.tests[data.own], which = +find("level").value;
    const put = (id, value) => { if (find(id)) find(id).textContent = value; };
    put("money", number(money(own)));
    put("energy", number(energy(own)));
    put("kwh", number(energy(own) == null ? null : energy(own) / 3.6e6));
    marks.forEach((mark) => mark.classList.toggle("chosen", which === +mark.dataset.i));
    for (const [side, test] of [["own", own], ["level", data.tests[which]]]) {
      data.columns.forEach(([key]) => put(`${side}-${key}`, key === "standing" ? test[key] : `${few(test, key) ? "≤ " : ""}${number(read(test, key))}`));
      put(`${side}-money`, number(money(test)));
      put(`${side}-energy`, number(energy(test)));
    }
    every(".cells > div").forEach((cell) => {
      cell.hidden = cell.querySelector("b").textContent === "–";
      cell.lastChild.hidden = which === data.own;
    });
  }

  function update() { draw(); answer(); show(); }

  every("[name=point]").forEach((radio) => radio.addEventListener("change", () => { point = radio.value; update(); }));
  fields.forEach((field) => field.addEventListener("input", update));
  find("level").addEventListener("change", show);
  find("reset").addEventListener("click", () => {
    fields.forEach((field) => { field.value = field.defaultValue; });
    every("[name=point]").forEach((radio) => { radio.checked = radio.defaultChecked; });
    point = "p99";
    find("level").value = data.own;
    update();
  });
  every("svg.load").forEach((svg) => svg.addEventListener("click", (event) => { // the nearest mark: small ones are easy to hit
    const away = (mark) => {
      const box = mark.querySelector(".hit").getBoundingClientRect();
      return Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2);
    };
    const near = [...svg.querySelectorAll(".mark")].filter((mark) => mark.style.display !== "none").sort((a, b) => away(a) - away(b))[0];
    if (near && away(near) < 40) find("level").value = near.dataset.i;
    show();
  }));

  find("csv").addEventListener("click", () => {
    const cell = (value) => /[",\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? "");
    const rows = [columns.map(([, title]) => title), ...data.tests.map((test) => columns.map(([key]) => few(test, key) ? null : read(test, key)))];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
    link.download = data.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  update();
})();
