package main

import "github.com/gabiondb/gabion/engine/mutate"

// killPointEnv names the variable that has a program with killEdits kill
// itself. Its value is a point's name, a colon, and as the how manieth one there
// the program does it.
const killPointEnv = "GABION_KILL_POINT"

// killEdits give a program the points that killRows name, at which it kills
// itself: without a deferred call and without a flush.
var killEdits = []mutate.Edit{
	{File: "engine/kill_point.go", New: `package engine

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var (
	killName, killCount, _ = strings.Cut(os.Getenv("` + killPointEnv + `"), ":")
	killAt, _              = strconv.ParseInt(killCount, 10, 64)
	killPassed             atomic.Int64
	killPurging            atomic.Bool // the round that is cut has something of a purge in it
)

func KillPoint(name string) {
	if KillsAt(name) {
		Kill()
	}
}

func KillsAt(name string) bool { return name == killName && killPassed.Add(1) == killAt }

func Kill() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}
`},

	// A round on its way, and its answers.
	{
		File: "engine/commit.go",
		Old:  "	drainBatch(sh.purged, b)\n",
		New:  "	if sh.purged != nil && !sh.purged.Empty() {\n		killPurging.Store(true)\n	}\n	drainBatch(sh.purged, b)\n",
	},
	{
		File: "engine/commit.go",
		Old:  "	rs.applying.Store(r.seq)\n",
		New:  "	rs.applying.Store(r.seq)\n	KillPoint(`cut`)\n	if killPurging.Load() {\n		KillPoint(`purge cut`)\n	}\n",
	},
	{
		File: "engine/commit.go",
		Old:  "		rs.applied.Store(r.seq)\n",
		New:  "		KillPoint(`applied`)\n		if killPurging.Swap(false) {\n			KillPoint(`purge applied`)\n		}\n		rs.applied.Store(r.seq)\n",
	},
	{
		File: "engine/commit.go",
		Old:  "			rs.durable.Store(r.seq)\n",
		New:  "			KillPoint(`synced`)\n			rs.durable.Store(r.seq)\n",
	},
	{
		File: "engine/commit.go",
		Old:  "		_ = r.batch.Close() // always nil for a batch that has been applied\n",
		New:  "		KillPoint(`acknowledged`)\n		_ = r.batch.Close()\n",
	},
	{
		File: "commands/sender.go",
		Old:  "import (\n",
		New:  "import (\n	\"github.com/gabiondb/gabion/engine\"\n",
	},
	{
		File: "commands/sender.go",
		Old:  "		if err := w.nc.SetWriteDeadline(time.Now().Add(patience)); err != nil {\n",
		New: "		engine.KillPoint(`reply`)\n" +
			"		if engine.KillsAt(`half a reply`) {\n			_, _ = w.nc.Write(b[:len(b)/2])\n			engine.Kill()\n		}\n" +
			"		if err := w.nc.SetWriteDeadline(time.Now().Add(patience)); err != nil {\n",
	},

	// A transaction, before anything of it is in a round.
	{
		File: "engine/update.go",
		Old:  "	mark := l.cut(b, true)\n",
		New:  "	KillPoint(`decided`)\n	mark := l.cut(b, true)\n",
	},

	// A purge.
	{
		File: "engine/purge.go",
		Old:  "		sc.purged, p.round = y.round, y.round\n",
		New:  "		KillPoint(`purge staged`)\n		sc.purged, p.round = y.round, y.round\n",
	},
	{
		File: "engine/purge.go",
		Old:  "	p.requestsRound = p.round\n",
		New:  "	KillPoint(`requests staged`)\n	p.requestsRound = p.round\n",
	},
	{
		File: "engine/purge.go",
		Old:  "		if progress != nil {\n",
		New:  "		KillPoint(`compact purging`)\n		if progress != nil {\n",
	},
	{
		File: "engine/compact.go",
		Old:  "	for i := range parts {\n",
		New:  "	KillPoint(`compact purged`)\n	for i := range parts {\n",
	},
	{
		File: "engine/compact.go",
		Old:  "	return l.failure.get()\n}",
		New:  "	KillPoint(`compacted`)\n	return l.failure.get()\n}",
	},

	// A copy.
	{
		File: "engine/checkpoint.go",
		Old:  "	return l.disk.setAside(ctx, dir, func() error { return l.db.Checkpoint(dir) })\n",
		New:  "	KillPoint(`copy begun`)\n	return l.disk.setAside(ctx, dir, func() error { return l.db.Checkpoint(dir) })\n",
	},
	{
		File: "engine/checkpoint.go",
		Old:  "	err = fill(temp)\n",
		New:  "	err = fill(temp)\n	KillPoint(`copied`)\n",
	},
	{
		File: "engine/checkpoint.go",
		Old:  "		err = fsys.Rename(temp, dir)\n",
		New:  "		err = fsys.Rename(temp, dir)\n		KillPoint(`copy named`)\n",
	},

	// The end, and the beginning.
	{
		File: "engine/commit.go",
		Old:  "			l.putSidecars()\n",
		New:  "			l.putSidecars()\n			KillPoint(`sidecars put`)\n",
	},
	{
		File: "engine/limiter.go",
		Old:  "	err := l.store.close()\n",
		New:  "	KillPoint(`closing`)\n	err := l.store.close()\n",
	},
	{
		File: "engine/store.go",
		Old:  "	mark, made, err := s.identify(dir, keys)\n",
		New:  "	KillPoint(`attached`)\n	mark, made, err := s.identify(dir, keys)\n	KillPoint(`identified`)\n",
	},
	{
		File: "engine/store.go",
		Old:  "		err = s.flush()\n",
		New:  "		err = s.flush()\n		KillPoint(`flushed`)\n",
	},
}
