-- Parts of `make bench`: commands that users wait for. Tokenizers, generated texts, token files, the prompt, sweeps.

local report = require("report")

local build, peer_python = report.build, report.peer_python
local compare, exists, json_lines = report.compare, report.exists, report.json_lines

local commands = {}

-- Tokenizers on one core (MB a second of processor time), over the text of `fortunes`; trained by the peer, or without
-- it those of the tests.
function commands.tokenizers()
  local text, folder = build .. "/bench/text.txt", build .. "/bench"
  os.execute(("cat $(ls /usr/share/games/fortunes/* | grep -vE '\\.(dat|u8)$') >%s"):format(text))
  local peer = {}
  if exists(peer_python) and os.execute(peer_python .. " -c 'import tokenizers' 2>/dev/null") == 0 then
    local command = ("%s tests/bench/peers/peer_tokenizer.py %s %s"):format(peer_python, text, folder)
    for _, line in ipairs((json_lines(command))) do
      peer[line.name] = line
    end
  else
    print("The tokenizers' side is missing: make bench-peers")
  end
  for _, name in ipairs({ "gpt2", "llama3" }) do
    local tokenizer = peer[name] and ("%s/%s.json"):format(folder, name)
      or ("tests/fixtures/tokenizer/good/%s.json"):format(name)
    local best, tokens
    for _ = 1, 5 do
      local line = json_lines(("%s/release/moonshard tokenize -j1 --json --tokenizer %s --out %s/tokens.bin %s"):format(
        build, tokenizer, folder, text))[1]
      local rate = line and line.bytes / 1e6 / line.cpu_seconds
      best, tokens = math.max(best or 0, rate or 0), line and line.tokens
    end
    compare("tokenize/" .. name, "MB/s", best, peer[name] and peer[name].mb_per_s, "higher")
    if peer[name] and tokens ~= peer[name].tokens then
      print(("tokenize/%s: %d tokens, and the peer has %d"):format(name, tokens, peer[name].tokens))
    end
  end
end

-- What waiting for token files takes of the steps of a small model, of one rank.
function commands.data()
  local line = json_lines(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/data.lua files=%s/bench/tokens.bin")
    :format(build, build))[1]
  if line then compare("data/share of a step", "fraction", line.data_share, nil, "lower") end
end

-- From the line that rank 0 has read to the value that came back from all ranks.
function commands.prompt()
  local told, times = report.output_of(('(echo ":time on"; yes "1 + 1" | head -500) | %s/release/moonshard repl -n 4')
    :format(build)), {}
  for ms in told:gmatch("%((%S+) ms%)") do times[#times + 1] = tonumber(ms) end
  table.sort(times)
  if not times[1] then return end
  compare("a line of the prompt, 4 ranks, least", "ms", times[1], nil, "lower")
  compare("a line of the prompt, 4 ranks, median", "ms", times[math.ceil(#times / 2)], nil, "lower")
end

-- Plan, start, metrics and results of a point; the least of several sweeps.
function commands.sweep()
  local least
  for _ = 1, 3 do
    local told = report.output_of(build .. "/release/moonshard sweep tests/bench/sweep.lua 2>/dev/null")
    local seconds = tonumber(told:match("\na point [^%d\n]*([%d.]+) s"))
    if seconds and (not least or seconds < least) then least = seconds end
  end
  if least then compare("a point of a sweep, 4 ranks", "s", least, nil, "lower") end
end

-- Tokens a second of texts that are continued, one alone and eight together.
function commands.generation()
  local has_peer = exists(peer_python)
    and os.execute(peer_python .. " -c 'from transformers import Qwen3ForCausalLM' 2>/dev/null") == 0
  if not has_peer then print("transformers' side of generation is missing: make bench-peers") end
  for _, family in ipairs({ "gpt2", "qwen3" }) do
    for _, batch in ipairs({ 1, 8 }) do
      local line = json_lines(("%s/release/moonshard run tests/bench/generate.lua family=%s batch=%d"):format(build,
        family, batch))[1] or {}
      local peer = has_peer and json_lines(("%s tests/bench/peers/peer_generate.py %s %d 64 64"):format(peer_python,
        family, batch))[1] or {}
      compare(("generate/%s/%d texts"):format(family, batch), "tokens/s", line.kept_tokens_per_s, peer.tokens_per_s,
        "higher")
    end
  end
end

return commands
