-- What a check has found: each finding is a line, and a check with findings ends with 1.

local findings, count = {}, 0

---@param format string as string.format's
---@param ... any
function findings.report(format, ...)
  print(format:format(...))
  count = count + 1
end

function findings.finish() os.exit(count == 0 and 0 or 1) end

return findings
