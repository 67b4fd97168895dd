-- Shows the progress of a run: one line that is redrawn on a terminal, a few plain lines elsewhere.

local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local output_file = require("moonshard.base.files.output_file")
local terminal = require("moonshard.base.text.terminal")

local progress = {}

local REDRAW_SECONDS = 0.1
local PLAIN_LINES = 20
local BAR_CELLS = 20
local EIGHTHS = { "▏", "▎", "▍", "▌", "▋", "▊", "▉" }
-- Weight of the newest step in the exponential average of loss and speed.
local NEWEST = 0.1

local function fresh()
  return {
    total = nil, began = nil, first_step = nil, drawn_at = -1, line_open = false, interactive = nil,
    pending = nil, -- { step, metrics } of a step that has not been shown
  }
end

local shown = fresh()
-- "bar": one line that is redrawn; "plain": lines; "auto": a bar on a terminal.
local style = "auto"

---Sets how runs are shown from now on.
---@param chosen "auto"|"bar"|"plain"
function progress.show_as(chosen) style = chosen end

---Starts a run of `steps` steps; without this call there is no bar and no remaining time.
---@param steps integer
function progress.expect(steps)
  if type(steps) ~= "number" or steps ~= steps or steps < 0 then
    errors.invalid("ms.log.expect: the number of steps must be a number of at least 0, not %s",
      options.describe(steps))
  end
  progress.finish()
  shown = fresh()
  shown.total = steps
end

---@return integer? steps that the run is expected to have
function progress.total() return shown.total end

local function smooth(before, value)
  return before and before + NEWEST * (value - before) or value
end

---@param seconds number
---@return string "1:02:03", "2:05"
function progress.duration(seconds)
  seconds = math.max(0, math.floor(seconds + 0.5))
  local hours, minutes = math.floor(seconds / 3600), math.floor(seconds / 60) % 60
  if hours > 0 then return ("%d:%02d:%02d"):format(hours, minutes, seconds % 60) end
  return ("%d:%02d"):format(minutes, seconds % 60)
end

---@param bytes number
---@return string "21.4 MiB"
function progress.size(bytes)
  local units, i = { "B", "KiB", "MiB", "GiB", "TiB" }, 1
  while bytes >= 1024 and i < #units do
    bytes, i = bytes / 1024, i + 1
  end
  return (i == 1 and "%d %s" or "%.1f %s"):format(bytes, units[i])
end

---@param tokens_per_s number
---@return string "23.7k tokens/s"
function progress.rate(tokens_per_s)
  if tokens_per_s >= 1e6 then return ("%.2fM tokens/s"):format(tokens_per_s / 1e6) end
  if tokens_per_s >= 1e4 then return ("%.1fk tokens/s"):format(tokens_per_s / 1e3) end
  return ("%.0f tokens/s"):format(tokens_per_s)
end

---The speed of a step: in samples where a target is no token.
---@param m moonshard.StepMetrics
---@return number? per second
---@return string? text
function progress.speed(m)
  local speed = m.samples_per_s or m.tokens_per_s
  if not speed then return nil end
  local text = progress.rate(speed)
  return speed, m.samples_per_s and text:gsub("tokens", "samples") or text
end

---@param fraction number 0 to 1
---@return string
function progress.bar(fraction)
  local eighths = math.floor(math.min(1, fraction) * BAR_CELLS * 8)
  local full, rest = math.floor(eighths / 8), eighths % 8
  local cells = ("█"):rep(full) .. (rest > 0 and EIGHTHS[rest] or "")
  return "▕" .. cells .. (" "):rep(BAR_CELLS - full - (rest > 0 and 1 or 0)) .. "▏"
end

local function seconds_left(step)
  local done = step - shown.first_step
  if not shown.total or done < 1 then return nil end
  return (clock.now() - shown.began) / done * (shown.total - step)
end

local function counted(step)
  if not shown.total then return ("step %d"):format(step) end
  return ("step %" .. #tostring(shown.total) .. "d/%d"):format(step, shown.total)
end

---Number of characters on the screen: bytes that do not continue a UTF-8 sequence.
---@param text string
---@return integer
function progress.width(text)
  local _, characters = text:gsub("[^\128-\191]", "")
  return characters
end

-- "1.2 GiB per rank", on a GPU with the memory outside the arenas: "1.2 GiB + 0.6 GiB of CUDA and NCCL per rank".
local function memory_of(m)
  local outside = m.outside_bytes and (" + %s of CUDA and NCCL"):format(progress.size(m.outside_bytes)) or ""
  return progress.size(m.peak_bytes) .. outside .. " per rank"
end

-- Most important part first: parts that exceed the width of the terminal are dropped from the end.
local function terminal_line(step, m)
  local parts = { counted(step) }
  if shown.total then parts[2] = progress.bar(step / shown.total) end
  parts[#parts + 1] = ("loss %.4f"):format(shown.loss)
  if shown.speed then parts[#parts + 1] = shown.speed_text end
  local left = seconds_left(step)
  if left then parts[#parts + 1] = progress.duration(left) .. " left" end
  if m.peak_bytes then parts[#parts + 1] = memory_of(m) end
  if shown.valid_loss then parts[#parts + 1] = ("validation %.4f"):format(shown.valid_loss) end
  local columns, line = terminal.columns() - 1, ""
  for i, part in ipairs(parts) do
    local longer = i == 1 and part or line .. "  " .. part
    if progress.width(longer) > columns then break end
    line = longer
  end
  return line
end

local function plain_line(step, m)
  local parts = { counted(step), ("loss %.4f"):format(m.loss) }
  if m.grad_norm then parts[#parts + 1] = ("grad norm %.3f"):format(m.grad_norm) end
  if m.lr then parts[#parts + 1] = ("lr %.2e"):format(m.lr) end
  if shown.speed then parts[#parts + 1] = shown.speed_text end
  if m.peak_bytes then parts[#parts + 1] = memory_of(m) end
  local left = seconds_left(step)
  if left and step < shown.total then parts[#parts + 1] = progress.duration(left) .. " left" end
  if m.valid_loss then parts[#parts + 1] = ("validation %.4f"):format(m.valid_loss) end
  return table.concat(parts, "  ")
end

local function draw(step, m, last)
  local now = clock.now()
  if not last and not m.valid_loss and now - shown.drawn_at < REDRAW_SECONDS then
    shown.pending = { step, m }
    return
  end
  shown.drawn_at, shown.line_open = now, true
  output_file.print("\r", terminal_line(step, m), "\27[K")
  if last then progress.finish() end
end

local function write_plain(step, m, last)
  local every = shown.total and math.max(1, math.floor(shown.total / PLAIN_LINES)) or PLAIN_LINES
  if not (last or step == shown.first_step or step % every == 0 or m.valid_loss) then
    shown.pending = { step, m }
    return
  end
  output_file.print(plain_line(step, m), "\n")
end

local function show_line(step, m, last)
  if shown.interactive then draw(step, m, last) else write_plain(step, m, last) end
end

---Shows a step: redraws the line on a terminal; elsewhere prints at intervals, and the first and the last step.
---@param step integer
---@param m table moonshard.StepMetrics, at least loss; valid_loss if there was a validation
function progress.show(step, m)
  if shown.interactive == nil then
    shown.interactive = style == "bar" or style == "auto" and terminal.interactive()
  end
  if not shown.began then
    shown.began, shown.first_step = clock.now(), step
  end
  shown.loss = smooth(shown.loss, m.loss)
  local speed = progress.speed(m)
  shown.speed = speed and smooth(shown.speed, speed)
  shown.speed_text = speed and select(2, progress.speed({
    tokens_per_s = shown.speed, samples_per_s = m.samples_per_s and shown.speed,
  }))
  shown.valid_loss = m.valid_loss or shown.valid_loss
  shown.pending = nil
  show_line(step, m, step == shown.total)
end

---Shows the last step if it has not been shown: a loop of unknown length has ended.
function progress.show_last()
  if not shown.pending then return end
  local step, m = unpack(shown.pending)
  shown.pending = nil
  show_line(step, m, true)
end

---Ends the line being redrawn, if any, so that other text starts on its own line.
function progress.finish()
  if shown.line_open then
    io.write("\n")
    io.flush()
    shown.line_open = false
  end
end

return progress
