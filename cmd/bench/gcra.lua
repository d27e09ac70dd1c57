-- GCRA in microseconds and floats, as the usual scripts for Redis have it, to
-- measure CL.THROTTLE against: EVALSHA sha 1 key max_burst count period quantity
local burst, count, period, n = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local T = period * 1000000 / count
local tau = (burst + 1) * T
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
local new = tat + n * T
if new - now > tau then
  return {1, burst + 1, math.floor((tau - (tat - now)) / T), math.ceil((new - tau - now) / 1000000), math.ceil((tat - now) / 1000000)}
end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000))
return {0, burst + 1, math.floor((tau - (new - now)) / T), -1, math.ceil((new - now) / 1000000)}
