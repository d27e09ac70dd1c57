-- A rolling list in a sorted set, as the usual scripts for Redis have it, to
-- measure ROLL.ALLOW against: EVALSHA sha 1 key limit window-ms
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - window * 1000))
local count = redis.call('ZCARD', KEYS[1])
local allowed = 0
if count < limit then
  -- No two calls of a script begin in the same microsecond.
  local stamp = string.format('%.0f', now)
  redis.call('ZADD', KEYS[1], stamp, stamp)
  redis.call('PEXPIRE', KEYS[1], window)
  allowed, count = 1, count + 1
end
local wait = 0
if count >= limit then
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  wait = math.ceil((oldest[2] + window * 1000 - now) / 1000)
end
return {allowed, count, limit, wait}
