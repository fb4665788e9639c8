-- The requests of a file, one after another, again and again: -- FILE CONTENT-TYPE. Each body stands behind its length, eight digits.
function init(args)
  local file = assert(io.open(args[1], "rb"))
  local headers = { ["Content-Type"] = args[2] }
  made, at = {}, 0
  while true do
    local size = file:read(8)
    if not size then break end
    made[#made + 1] = wrk.format("POST", nil, headers, file:read(tonumber(size)))
  end
end

function request()
  at = at % #made + 1
  return made[at]
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    '{"requests": %d, "seconds": %.6f, "p50": %d, "p99": %d, "refused": %d, "broken": %d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
