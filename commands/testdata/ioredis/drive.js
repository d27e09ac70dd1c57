'use strict';

// Drives the server at argv[2]:argv[3] by ioredis, as it comes from the
// registry, in the version of the protocol that argv[4] says. The server is
// empty and its clock stands still. The exit status is 0 if every reply is the
// one that it must be.

const assert = require('node:assert/strict');
const { Redis } = require('ioredis');

const [host, port, protocol] = process.argv.slice(2);

function connect(options) {
  return new Redis({ host, port: Number(port), protocol: Number(protocol), retryStrategy: null, ...options });
}

// fails checks that a reply is an error with the code in front.
function fails(reply, code) {
  return assert.rejects(reply, (err) => err.name === 'ReplyError' && err.message.startsWith(code + ' '));
}

async function single(redis) {
  assert.deepEqual(await redis.call('CL.THROTTLE', 'g', 4, 1, 10, 2), [0, 5, 3, -1, 20]);
  assert.deepEqual(await redis.call('CL.PROBE', 'g', 4, 1, 10, 4), [1, 5, 3, 10, 20]);
  assert.deepEqual(await redis.call('CL.MTHROTTLE', 'ALL', 2, 'g', 4, 1, 10, 2, 'h', 0, 1, 10, 2), [1, -1, [0, 5, 3, -1, 20], [1, 1, 1, -1, 0]]);
  assert.deepEqual(await redis.call('CL.MTHROTTLE', 'EACH', 2, 'g', 4, 1, 10, 2, 'h', 0, 1, 10, 2), [1, -1, [0, 5, 1, -1, 40], [1, 1, 1, -1, 0]]);
  assert.deepEqual(await redis.call('CL.MPROBE', 'ALL', 2, 'g', 4, 1, 10, 1, 'g', 4, 1, 10, 1), [1, 10, [0, 5, 1, -1, 40], [1, 5, 1, 10, 40]]);
  assert.deepEqual(await redis.call('CL.REFUND', 'g', 4, 1, 10, 2), [0, 5, 3, -1, 20]);
  assert.deepEqual(await redis.call('QUOTA.TAKE', 'q', 'order-0', 5, 5, 60000), [1, 5, 0]);
  assert.deepEqual(await redis.call('QUOTA.REFUND', 'q', 'order-0'), [1, 0, 0]);
  assert.deepEqual(await redis.call('QUOTA.REFUND', 'q', 'order-0'), [1, 0, 1]);
  assert.deepEqual(await redis.call('QUOTA.TAKE', 'q', 'order-1', 2, 5, 60000), [1, 2, 0]);
  assert.deepEqual(await redis.call('QUOTA.TAKE', 'q', 'order-1', 2, 5, 60000), [1, 2, 1]);
  assert.deepEqual(await redis.call('QUOTA.TAKE', 'q', 'order-2', 4, 5, 60000), [0, 2, 0]);
  assert.deepEqual(await redis.call('QUOTA.PROBE', 'q', 'order-2', 3, 5, 60000), [1, 5, 0]);
  assert.deepEqual(await redis.call('QUOTA.GET', 'q'), [2, 5, 60000, 60000]);
  assert.equal(await redis.call('QUOTA.GET', 'missing'), null);
  assert.deepEqual(await redis.call('ROLL.ALLOW', 'r', 3, 10000), [1, 1, 3, 0]);
  assert.equal(await redis.call('ROLL.INCR', 'r', 3, 10000, 5), 4);
  assert.deepEqual(await redis.call('ROLL.ALLOW', 'r', 3, 10000, 'PAUSE'), [0, 4, 3, 10000]);
  assert.equal(await redis.call('ROLL.PEEK', 'r', 3, 10000), 4);
  assert.equal(await redis.call('ROLL.WAIT', 'r', 3, 10000), 10000);
  const big = 2 ** 52 + 1; // ioredis reads integers exactly up to a little less than 2^53
  assert.equal(await redis.call('ROLL.INCR', 'big', big, 10000, big), big);
}

async function errors(redis) {
  await fails(redis.call('CL.THROTTLE', 'g', 4, 0, 10), 'ERR');
  await fails(redis.call('CL.MTHROTTLE', 'ANY', 1, 'g', 4, 1, 10, 1), 'ERR');
  await fails(redis.call('CL.MTHROTTLE', 'ALL', 2, 'g', 4, 1, 10, 1, 'q', 4, 1, 10, 1), 'WRONGTYPE');
  await fails(redis.call('QUOTA.TAKE', 'q', 'order-0', 5, 5, 60000), 'CONFLICT');
  await fails(redis.call('QUOTA.TAKE', 'q', 'order-1', 1, 5, 60000), 'CONFLICT');
  await fails(redis.call('QUOTA.TAKE', 'q', 'order-1', 2, 6, 60000), 'POLICY');
  await fails(redis.call('QUOTA.TAKE', 'q', 'order-3', 1.5, 5, 60000), 'INVALID');
  await fails(redis.call('QUOTA.TAKE', 'q', 'order-3', NaN, 5, 60000), 'INVALID');
  await fails(redis.call('QUOTA.TAKE', 'r', 'order-3', 1, 5, 60000), 'WRONGTYPE');
  await fails(redis.call('ROLL.ALLOW', 'q', 3, 10000), 'WRONGTYPE');
  await fails(redis.call('ROLL.ALLOW', 'r', 3, -1), 'ERR');
}

// What COMMAND tells of the places of keys leads to them.
async function places(redis) {
  const request = ['CL.MTHROTTLE', 'ALL', 2, 'g', 4, 1, 10, 2, 'h', 0, 1, 10, 2];
  assert.deepEqual(await redis.command('GETKEYS', ...request), ['g', 'h']);
  const [[, , , first, last, step]] = await redis.command('INFO', 'cl.mthrottle');
  const found = [];
  for (let i = first; i <= request.length + last; i += step) found.push(request[i]);
  assert.deepEqual(found, ['g', 'h']);
}

// Commands that ioredis has no method for can be given one.
async function methods(redis) {
  redis.addBuiltinCommand('quota.get');
  redis.addBuiltinCommand('roll.peek');
  assert.deepEqual(await redis['quota.get']('q'), [2, 5, 60000, 60000]);
  assert.equal(await redis['roll.peek']('r', 3, 10000), 4);
}

async function pipeline(redis) {
  const replies = await redis
    .pipeline()
    .call('CL.THROTTLE', 'g', 4, 1, 10)
    .call('QUOTA.TAKE', 'q', 'order-4', 1, 5, 60000)
    .call('QUOTA.TAKE', 'q', 'order-4', 2, 5, 60000)
    .call('ROLL.PEEK', 'r', 3, 10000)
    .exists('g', 'q', 'r', 'missing')
    .exec();
  assert.match(replies[2][0].message, /^CONFLICT /);
  replies[2] = null;
  assert.deepEqual(replies, [[null, [0, 5, 2, -1, 30]], [null, [1, 3, 0]], null, [null, 4], [null, 3]]);
}

async function keys(redis) {
  for (const [key, kind] of [['g', 'gcra'], ['q', 'quota'], ['r', 'rolling']]) {
    assert.equal(await redis.type(key), kind);
    const found = [];
    for await (const page of redis.scanStream({ match: '?', type: kind, count: 1000 })) found.push(...page);
    assert.deepEqual(found, [key]);
  }
  assert.equal(await redis.pttl('q'), 60000);
  assert.equal(await redis.ttl('r'), 10);
  assert.equal(await redis.dbsize(), 4);
  assert.equal(await redis.del('g', 'q', 'r', 'big'), 4);
}

// One request from many sides, put into pipelines by ioredis itself.
async function crowd() {
  const clients = Array.from({ length: 4 }, () => connect({ enableAutoPipelining: true }));
  const calls = Array.from({ length: 200 }, (_, i) => clients[i % clients.length].call('QUOTA.TAKE', 'crowd', 'once', 3, 5, 60000));
  const replies = await Promise.all(calls);
  assert.equal(replies.filter(([accepted, used]) => accepted === 1 && used === 3).length, 200);
  assert.equal(replies.filter(([, , replay]) => replay === 0).length, 1);
  await Promise.all(clients.map((client) => client.quit()));
}

async function main() {
  const redis = connect();
  await single(redis);
  await errors(redis);
  await places(redis);
  await methods(redis);
  await pipeline(redis);
  await keys(redis);
  await crowd();
  await redis.flushall();
  await redis.quit();
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
