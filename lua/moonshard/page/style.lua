-- The style sheets of a sweep's page: light or dark like the reader's system, for narrow and wide screens and paper.

local roles = require("moonshard.shard.roles")

local style = {}

---For charts, in the page and as separate files. Light.
style.drawing = [[
:root {
  --back: #ffffff; --card: #f6f7f9; --ink: #1c2330; --soft: #5c6675; --line: #dde1e7; --warn: #b42318;
  --c1: #2f6fde; --c2: #7a4fd0; --c3: #c2458f; --c4: #e08a1e; --c5: #1f9d72; --c6: #8a8f98; --c7: #17a2c4;
  --c8: #8c7a2b;
}
svg { display: block; font-family: system-ui, sans-serif; }
svg text {
  font-size: 12px; fill: var(--ink); white-space: pre; paint-order: stroke; stroke: var(--card); stroke-width: 4px;
}
svg .group { font-size: 14px; font-weight: 600; }
svg .value { font-weight: 600; }
svg .tick, svg .limit-text, svg .axis-title { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--line); }
svg .phase { stroke: var(--soft); stroke-dasharray: 2 3; }
svg .zero { stroke: var(--ink); }
svg .ideal { stroke: var(--soft); stroke-dasharray: 2 4; stroke-width: 1.5; }
svg .limit { stroke: var(--warn); stroke-dasharray: 5 4; stroke-width: 1.5; }
svg .limit-text { fill: var(--warn); }
svg .range line { stroke: var(--ink); stroke-width: 1.5; }
svg .curve { stroke: var(--c1); stroke-width: 2; }
svg .cell { stroke: none; fill: var(--ink); }
svg .faint { opacity: 0.45; }
svg .behind { fill: var(--card); }
svg .box { fill-opacity: 0.22; }
svg .rank { fill: var(--card); stroke: var(--ink); }
svg .group-line { fill: none; stroke-width: 2.5; }
svg .m1.group-line { stroke: var(--c4); } svg .m2.group-line { stroke: var(--c3); }
svg .m3.group-line { stroke: var(--c5); } svg .m4.group-line { stroke: var(--c7); }
svg .m5.group-line { stroke: var(--c2); } svg .m6.group-line { stroke: var(--c6); }
svg .line { stroke-width: 2; }
svg .error { stroke-width: 1.5; opacity: 0.6; }
.s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); } .s4 { stroke: var(--c4); }
.s5 { stroke: var(--c5); } .s6 { stroke: var(--c6); } .s7 { stroke: var(--c7); }
.c1 { fill: var(--c1); background: var(--c1); }
.c2, .m5 { fill: var(--c2); background: var(--c2); }
.c3, .m2 { fill: var(--c3); background: var(--c3); }
.c4, .m1 { fill: var(--c4); background: var(--c4); }
.c5, .m3 { fill: var(--c5); background: var(--c5); }
.c6, .m6 { fill: var(--c6); background: var(--c6); }
.c7, .m4 { fill: var(--c7); background: var(--c7); }
.c8 { fill: var(--c8); background: var(--c8); }
]]

-- Roles of mesh dimensions have a colour each, the same in all charts: m1 to m5; m6 is any other dimension.
local ROLES = 5

---@param dim string name of a mesh dimension
---@return string class
function style.of_dimension(dim) return "m" .. math.min(roles.number(dim) or ROLES + 1, ROLES + 1) end

---For the page around the charts. Dark if the reader's system is.
style.page = [[
@media screen and (prefers-color-scheme: dark) {
  :root {
    --back: #12161d; --card: #1b212b; --ink: #e8ebf0; --soft: #a0a9b8; --line: #323a47; --warn: #ff8a7a;
    --c1: #5b93f5; --c2: #9d7bea; --c3: #e06db0; --c4: #f0a94a; --c5: #45c596; --c6: #9aa1ad; --c7: #4cc3e0;
    --c8: #cbb65c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--back); color: var(--ink); font: 15px/1.45 system-ui, sans-serif;
  print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
main { max-width: 1160px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 18px; margin: 0; }
p { margin: 4px 0 0; }
.about, figcaption p { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 20px 0; }
dl div, figure { background: var(--card); border-radius: 10px; padding: 14px 16px; }
dl .first { border-left: 4px solid var(--c1); }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 2px 0 0; font-size: 20px; font-weight: 600; }
dd small { display: block; font-size: 13px; font-weight: 400; color: var(--soft); }
figure { margin: 16px 0; break-inside: avoid; }
figcaption { margin-bottom: 8px; }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 14px; margin: 0 0 6px; padding: 0; list-style: none; font-size: 13px;
}
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }
.warning { border-left: 3px solid var(--warn); padding: 2px 0 2px 10px; margin: 8px 0; }
section { margin-top: 24px; }
section h2 { margin-bottom: 8px; }
ul { padding-left: 18px; }
li { overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: 12px; background: var(--card); border-radius: 10px; padding: 14px 16px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 5px 4px; text-align: left; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; white-space: normal; vertical-align: bottom; }
.n { text-align: right; }
.wide { min-width: 110px; white-space: normal; }
.skipped td { color: var(--soft); }
.failed td { color: var(--warn); }
.get, .controls { font-size: 13px; }
.get { color: var(--c1); margin-right: 12px; }
figcaption .get { float: right; margin: 2px 0 0 10px; }
.controls { display: flex; flex-wrap: wrap; gap: 6px 16px; margin: 8px 0 0; color: var(--soft); }
.controls select, th button { font: inherit; color: inherit; background: none; }
.controls select { border: 1px solid var(--line); border-radius: 6px; padding: 2px 4px; max-width: 60vw; }
.controls option { color: var(--ink); background: var(--back); }
th button { border: 0; padding: 0; cursor: pointer; }
th[aria-sort] { color: var(--ink); }
th[aria-sort=ascending] button::after { content: " \2191"; }
th[aria-sort=descending] button::after { content: " \2193"; }
@media print {
  .get, .controls { display: none; }
  main { max-width: none; padding: 0; }
  table { font-size: 8px; white-space: normal; width: 100%; }
  th, td { padding: 2px 3px; }
  pre, .scroll { overflow: visible; }
}
]]

return style
