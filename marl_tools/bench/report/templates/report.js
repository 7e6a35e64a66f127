// Draws figures when they come into sight, opens runs in place, filters and sorts their list, and follows a live run.
(() => {
  "use strict";
  const PRINT_WIDTH = 308;
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon"];
  const specs = new Map();
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Plotly reads a little HTML in names: theirs is shown as it is written.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const colour = (index) => (index < 0 ? css(index === -1 ? "--ink" : "--c7") : css(`--c${index % 8}`));
  const faint = (hex, alpha) => {
    const value = parseInt(hex.slice(1), 16);
    return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${alpha})`;
  };

  // Figures -----------------------------------------------------------------------------------------------------------

  function bands(trace, hex, group) {
    const known = trace.y.map((y, i) => i).filter((i) => trace.lo[i] !== null && trace.hi[i] !== null);
    return {
      x: [...known.map((i) => trace.x[i]), ...known.map((i) => trace.x[i]).reverse()],
      y: [...known.map((i) => trace.hi[i]), ...known.map((i) => trace.lo[i]).reverse()],
      type: "scatter", mode: "lines", fill: "toself", fillcolor: faint(hex, 0.16), line: { width: 0 },
      hoverinfo: "skip", showlegend: false, legendgroup: group,
    };
  }

  function lines(spec) {
    const drawn = [];
    spec.traces.forEach((trace, place) => {
      const hex = colour(trace.color);
      const group = `g${place}`;
      const markers = trace.mode === "markers";
      if (trace.lo && !trace.error) drawn.push(bands(trace, hex, group));
      drawn.push({
        x: trace.x, y: trace.y, type: "scatter", name: plain(trace.name), legendgroup: group,
        mode: trace.mode || (trace.x.length < 2 ? "markers" : "lines"), connectgaps: true,
        line: { color: hex, width: trace.width || 1.8, dash: trace.color < 0 ? "solid" : DASHES[trace.color % DASHES.length], shape: trace.shape || "linear" },
        marker: { color: hex, size: 7, symbol: markers ? "diamond" : "circle" },
        ...(trace.error && trace.lo ? {
          error_y: {
            type: "data", symmetric: false, color: hex, thickness: 1.2, width: 3,
            array: trace.hi.map((hi, i) => (hi === null ? 0 : hi - trace.y[i])),
            arrayminus: trace.lo.map((lo, i) => (lo === null ? 0 : trace.y[i] - lo)),
          },
        } : {}),
        hovertemplate: `%{y:${spec.percent ? ".2%" : ".4~g"}}<extra>${plain(trace.name)}</extra>`,
      });
    });
    return drawn;
  }

  // One row a method: a point with its interval.
  function points(spec) {
    return spec.traces.map((trace) => {
      const hex = colour(trace.color);
      return {
        x: trace.x, y: trace.y.map(plain), type: "scatter", mode: "markers", name: plain(trace.name),
        marker: { color: hex, size: trace.size || 11, symbol: SYMBOLS[trace.color % SYMBOLS.length], opacity: trace.opacity || 1 },
        showlegend: false, cliponaxis: false,
        ...(trace.lo ? {
          error_x: {
            type: "data", symmetric: false, color: hex, thickness: 2, width: 5,
            array: trace.hi.map((hi, i) => (hi === null ? 0 : hi - trace.x[i])),
            arrayminus: trace.lo.map((lo, i) => (lo === null ? 0 : trace.x[i] - lo)),
          },
        } : {}),
        hovertemplate: `%{x:${spec.percent ? ".2%" : ".4~g"}}<extra>${plain(trace.name)}</extra>`,
      };
    });
  }

  function layout(spec, box, narrow) {
    const ink = css("--ink"), soft = css("--soft"), grid = css("--line");
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, tickfont: { size: 11, color: soft }, title: { font: { size: 12, color: soft }, standoff: 8 } };
    const forest = spec.kind === "points";
    const level = (spec.levels || []).map((row) => ({
      type: "line", line: { color: soft, width: 1.3, dash: "dot" },
      ...(forest ? { yref: "paper", y0: 0, y1: 1, x0: row.y, x1: row.y } : { xref: "paper", x0: 0, x1: 1, y0: row.y, y1: row.y }),
    }));
    const words = (spec.levels || []).map((row) => ({
      text: plain(row.label), showarrow: false, font: { size: 11, color: soft }, bgcolor: faint(css("--card"), 0.75),
      ...(forest ? { yref: "paper", y: 1, yanchor: "bottom", x: row.y } : { xref: "paper", x: 1, xanchor: "right", y: row.y, yanchor: "bottom" }),
    }));
    // One value alone, such as a constant learning rate, would be drawn as nothing between -1 and 1.
    const values = spec.traces.flatMap((trace) => [...trace.y, ...(trace.lo || []), ...(trace.hi || [])]).filter((value) => value !== null);
    const flat = values.length > 0 && values.every((value) => value === values[0]);
    const around = flat ? { range: values[0] ? [Math.min(0, 2 * values[0]), Math.max(0, 2 * values[0])] : [0, 1] } : {};
    const format = spec.percent ? { tickformat: "~%", rangemode: "tozero" } : {};
    return {
      width: box.clientWidth || undefined, height: box.clientHeight || 300, autosize: false,
      margin: { l: 12, r: 14, t: forest ? 22 : 12, b: 12 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: ink, size: 12 },
      xaxis: { ...axis, ...(forest ? { ...format, zeroline: false } : {}), title: { ...axis.title, text: plain(spec.x) }, ...(spec.x_range ? { range: spec.x_range } : {}), nticks: narrow ? 5 : 8 },
      yaxis: forest
        ? { ...axis, type: "category", categoryarray: spec.order.map(plain).reverse(), categoryorder: "array", tickfont: { size: 12, color: ink }, ticks: "outside", ticklen: 8, tickcolor: "rgba(0,0,0,0)", range: [-0.7, spec.order.length - 0.3], showgrid: false }
        : { ...axis, ...format, ...around, title: { ...axis.title, text: plain(spec.y) }, nticks: 7 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 }, itemwidth: 34 },
      showlegend: !forest && spec.traces.length > 1, hovermode: forest ? "closest" : "x unified",
      hoverlabel: { bgcolor: css("--card"), bordercolor: grid, font: { color: ink } },
      dragmode: narrow ? false : "zoom", shapes: level, annotations: words,
    };
  }

  function draw(figure) {
    const spec = specs.get(figure.dataset.figure);
    const box = $(".plot", figure);
    if (!spec || !box.clientWidth) return;
    const narrow = box.clientWidth < 420;
    if (spec.kind === "points") box.style.height = `${70 + 46 * spec.order.length}px`;
    const traces = spec.kind === "points" ? points(spec) : lines(spec);
    Plotly.react(box, traces, layout(spec, box, narrow), {
      displaylogo: false, displayModeBar: false, responsive: false, plotlyServerURL: "",
    });
    figure.dataset.drawn = "yes";
  }

  const inSight = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
  }, { rootMargin: "400px" });
  function watch(root) {
    $$(".figure", root).forEach((figure) => inSight.observe(figure));
    $$("video", root).forEach((video) => onStage.observe(video));
  }
  const spread = (x, count) => (Array.isArray(x) ? x : Array.from({ length: count }, (_, i) => x.from + i * x.by));
  function adopt(figures) {
    for (const [key, spec] of Object.entries(figures)) {
      for (const trace of spec.traces) trace.x = spread(trace.x, trace.y.length);
      specs.set(key, spec);
    }
  }
  const redraw = () => $$('.figure[data-drawn="yes"]').forEach(draw);

  let pause = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar
    width = innerWidth;
    clearTimeout(pause);
    pause = setTimeout(redraw, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is narrow and white, and shows what nobody has scrolled to. All inside the event: printing does not wait.
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    for (const figure of $$(".figure")) {
      draw(figure);
      if (figure.dataset.drawn) Plotly.relayout($(".plot", figure), { width: PRINT_WIDTH, height: 230 });
    }
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    redraw();
  });

  // Films play, without a sound, as long as they are in sight; who stops one has it stopped.
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const onStage = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) target.pause();
      else if (!still.matches && !target.dataset.stopped) target.play().catch(() => {});
    }
  }, { threshold: 0.5 });
  addEventListener("pause", (event) => {
    const box = event.target.getBoundingClientRect();
    if (box.bottom > 0 && box.top < innerHeight) event.target.dataset.stopped = "yes";
  }, true);

  // The list of runs --------------------------------------------------------------------------------------------------

  async function contents(row) {
    const template = $("template", row);
    if (template) {
      const part = template.content.cloneNode(true);
      $$("script.specs", part).forEach((script) => { adopt(JSON.parse(script.textContent)); script.remove(); });
      return part;
    }
    const reply = await (await fetch(`run/${row.dataset.number}`)).json();
    adopt(reply.figures);
    const part = document.createRange().createContextualFragment(reply.body);
    remember(`place-${row.dataset.number}`, part);
    return part;
  }

  async function toggle(row, open) {
    const button = $("button.open", row), place = $(".place", row);
    button.setAttribute("aria-expanded", String(open));
    $(".detail", row).hidden = !open;
    if (open && !place.hasChildNodes()) {
      place.append(await contents(row));
      watch(place);
    }
  }

  function filter() {
    const form = $(".filters");
    if (!form) return;
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    const rows = $$("tbody.run");
    for (const row of rows) {
      const fits = ["method", "task", "state"].every((key) => !wanted[key] || row.dataset[key] === wanted[key]) &&
        words.every((word) => row.dataset.text.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    $("#count").textContent = `${shown} of ${rows.length} runs`;
  }

  function sort(head) {
    const key = head.dataset.sort, table = head.closest("table");
    const down = head.getAttribute("aria-sort") === "ascending";
    $$("th[data-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.dataset[key] || "";
    const numeric = head.dataset.kind === "number";
    const rows = $$("tbody.run", table).sort((a, b) => {
      if (!value(a) || !value(b)) return Number(!value(a)) - Number(!value(b)); // what is not known comes last
      const order = numeric ? Number(value(a)) - Number(value(b)) : value(a).localeCompare(value(b), undefined, { numeric: true });
      return down ? -order : order;
    });
    table.append(...rows);
  }

  addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.classList.contains("open")) {
      const row = button.closest("tbody.run");
      toggle(row, button.getAttribute("aria-expanded") !== "true");
    } else if (button?.classList.contains("sort")) sort(button.closest("th"));
  });
  addEventListener("input", (event) => { if (event.target.closest(".filters")) filter(); });
  addEventListener("submit", (event) => event.preventDefault());
  // A fold that opens shows figures that had no size before.
  addEventListener("toggle", (event) => { if (event.target.open) watch(event.target); }, true);

  function follow() {
    const row = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (row && row.matches("tbody.run")) { row.hidden = false; toggle(row, true); row.scrollIntoView(); }
  }
  addEventListener("hashchange", follow);

  // A live page -------------------------------------------------------------------------------------------------------

  const told = new Map(); // each part as the server last told it

  const remember = (id, root) => [...root.children].forEach((part) => told.set(`${id}/${part.dataset.part}`, part.outerHTML));

  // Puts a new part in the old one's place: figures that stay, films that play and folds that are open stay so.
  function renew(old, fresh) {
    for (const figure of $$(".figure", fresh)) {
      const known = $(`.figure[data-figure="${CSS.escape(figure.dataset.figure)}"]`, old);
      if (!known) continue;
      $(".plot", known).setAttribute("aria-label", $(".plot", figure).getAttribute("aria-label"));
      figure.replaceWith(known);
    }
    for (const fold of $$("details[open][id]", old)) $(`#${CSS.escape(fold.id)}`, fresh)?.setAttribute("open", "");
    old.replaceWith(fresh);
    watch(fresh);
  }

  function merge(root, html) {
    const fresh = document.createRange().createContextualFragment(html);
    const order = [...fresh.children];
    for (const part of order) {
      const key = part.dataset.part, scope = `${root.id}/${key}`;
      const text = part.outerHTML;
      const old = [...root.children].find((child) => child.dataset.part === key);
      if (old && told.get(scope) === text) continue;
      told.set(scope, text);
      if (key === "runs" && old) rows(old, part);
      else if (old) renew(old, part);
      else {
        const next = order.slice(order.indexOf(part) + 1).map((other) => [...root.children].find((child) => child.dataset.part === other.dataset.part)).find(Boolean);
        root.insertBefore(part, next || null);
        watch(part);
      }
    }
    for (const child of [...root.children]) if (!order.some((part) => part.dataset.part === child.dataset.part)) child.remove();
  }

  // Rows of runs keep what is open in them.
  function rows(old, fresh) {
    const table = $("table.runs", old);
    for (const row of $$("tbody.run", fresh)) {
      const known = document.getElementById(row.id);
      if (!known) { table.append(row); continue; }
      Object.assign(known.dataset, row.dataset);
      const open = $("button.open", known).getAttribute("aria-expanded");
      if ($("tr.row", known).innerHTML !== $("tr.row", row).innerHTML) {
        $("tr.row", known).innerHTML = $("tr.row", row).innerHTML;
        $("button.open", known).setAttribute("aria-expanded", open);
      }
    }
    filter();
  }

  async function news(seconds) {
    const note = $("#live");
    let version = Number(document.body.dataset.version);
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      try {
        const reply = await (await fetch(`news?since=${version}`)).json();
        if (reply.version !== version) {
          adopt(reply.figures);
          merge($("#main"), reply.body);
          for (const row of $$('tbody.run:has(button.open[aria-expanded="true"])')) {
            const run = await (await fetch(`run/${row.dataset.number}`)).json();
            adopt(run.figures);
            const place = $(".place", row);
            merge(place, run.body);
          }
          redraw();
          version = reply.version;
          document.body.dataset.version = version;
        }
        note.textContent = `live: as of ${new Date().toLocaleTimeString()}`;
      } catch (error) {
        note.textContent = "the server has gone: what is shown is the last that it said";
      }
    }
  }

  $$("body > script.specs").forEach((script) => adopt(JSON.parse(script.textContent)));
  if (document.body.dataset.live) remember("main", $("#main"));
  watch(document);
  filter();
  follow();
  if (document.body.dataset.live) news(Number(document.body.dataset.live));
})();
