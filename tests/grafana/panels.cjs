// What Grafana's own code makes of panels: their columns after transformations, and where the links of points lead.
//
//   node panels.cjs FOLDER < panels.json
//
// FOLDER has node_modules with @grafana/data and @grafana/scenes. Reads {variables, url, interval, panels: [{panel,
// frames}]}; writes, for each panel, [{column, values, links: [{row, url}]}], for the first and the last point.
const Module = require("node:module");
const load = Module.createRequire(process.argv[2] + "/here.cjs");

// What draws (@grafana/ui, @grafana/runtime) is not installed; nothing of it is used here.
const nothing = () =>
  new Proxy(function () {}, {
    get: (_, name) => (name === "__esModule" ? true : name === Symbol.toPrimitive ? () => "" : nothing()),
    apply: () => nothing(),
    construct: () => ({}),
  });
const loadModule = Module._load;
Module._load = function (name, ...rest) {
  return /^(@grafana\/(ui|runtime|e2e-selectors|i18n|schema\/dist)|@emotion\/)/.test(name) ? nothing() : loadModule.call(this, name, ...rest);
};

const input = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
pretendToBeABrowser(input.url);
const data = load("@grafana/data");
const scenes = load("@grafana/scenes");
const { firstValueFrom } = load("rxjs");

data.locationUtil.initialize({ config: { appSubUrl: "" }, getVariablesUrlParams: () => ({}), getTimeRangeForUrl: () => ({}) });
const transformers = [...new Set(Object.values(data.standardTransformers))]; // one has two names
data.standardTransformersRegistry.setInit(() => transformers.map((t) => ({ id: t.id, name: t.name, transformation: t })));

const dashboard = new scenes.EmbeddedScene({
  $variables: new scenes.SceneVariableSet({
    variables: Object.entries(input.variables).map(([name, value]) => new scenes.ConstantVariable({ name, value })),
  }),
  body: new scenes.SceneCanvasText({ text: "" }),
});
const interval = { __interval_ms: { value: input.interval, text: String(input.interval) }, ...urlMacro(input.url) };
const interpolate = (text, variables, format) =>
  scenes.sceneGraph.interpolate(dashboard, text, { ...interval, ...variables }, format);

main();

async function main() {
  const results = [];
  for (const { panel, frames } of input.panels) {
    results.push(await columnsOf(panel, frames));
  }
  process.stdout.write(JSON.stringify(results));
}

async function columnsOf(panel, frames) {
  const transformed = await firstValueFrom(
    data.transformDataFrame(panel.transformations, frames.map(data.toDataFrame), { interpolate })
  );
  const drawn = data.applyFieldOverrides({
    data: transformed,
    fieldConfig: panel.fieldConfig,
    replaceVariables: interpolate,
    theme: data.createTheme(),
    fieldConfigRegistry: registryOf(panel.fieldConfig),
    timeZone: "utc",
  });
  return drawn.flatMap((frame) => {
    data.cacheFieldDisplayNames([frame]);
    // What lies along the axis of a chart has no points of its own; in tables the column with the link is what counts.
    const isLinked = (field) => field.config.links?.length && (panel.type === "table" || field !== frame.fields[0]);
    return frame.fields.filter(isShown).map((field) => ({
      column: data.getFieldDisplayName(field, frame, drawn),
      values: field.values,
      links: isLinked(field) ? ends(field).map((row) => ({ row: rowOf(frame, row), url: linkOf(field, row) })) : [],
    }));
  });
}

const isShown = (field) => !field.config.custom?.hideFrom?.tooltip;

function ends(field) {
  const rows = [...field.values.keys()].filter((row) => field.values[row] !== null && field.values[row] !== undefined);
  return [...new Set([rows[0], rows.at(-1)])].filter((row) => row !== undefined);
}

function linkOf(field, row) {
  const [link] = field.getLinks({ valueRowIndex: row });
  return link.href;
}

function rowOf(frame, row) {
  const wanted = frame.fields.filter((field) => /^(step|rank|Time|@timestamp)$/.test(data.getFieldDisplayName(field, frame)));
  return Object.fromEntries(wanted.map((field) => [data.getFieldDisplayName(field, frame), field.values[row]]));
}

/** Grafana's panels register what can be configured; here that is whatever the panel configures. */
function registryOf({ defaults, overrides }) {
  const custom = Object.keys(defaults.custom ?? {}).map((id) => `custom.${id}`);
  const overridden = overrides.flatMap((override) => override.properties.map((property) => property.id));
  const ids = new Set([...Object.keys(defaults).filter((id) => id !== "custom"), ...custom, ...overridden]);
  const items = [...ids].map((id) => ({
    id,
    path: id.replace(/^custom\./, ""),
    name: id,
    isCustom: id.startsWith("custom."),
    process: (value) => value,
    shouldApply: () => true,
  }));
  return new data.FieldConfigOptionsRegistry(() => items);
}

/** The address of the dashboard, which Grafana's scenes take from its router. */
function urlMacro(url) {
  const { pathname, search } = new URL(url);
  return { __url: { value: pathname + search, text: pathname + search } };
}

function pretendToBeABrowser(url) {
  const { JSDOM } = load("jsdom");
  const { window } = new JSDOM("", { url, pretendToBeVisual: true });
  const observer = class {
    observe() {}
  };
  window.matchMedia = () => ({ matches: false, addListener() {}, addEventListener() {} });
  Object.assign(window, { ResizeObserver: observer, IntersectionObserver: observer });
  for (const name of Object.getOwnPropertyNames(window)) {
    if (!(name in globalThis)) {
      Object.defineProperty(globalThis, name, { value: window[name], configurable: true, writable: true });
    }
  }
  globalThis.window = window;
}
