import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { openInside } from './bubblewrap.ts'

test('a worker has no rights, and cannot get any', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const status = (await inside.sh('cat /proc/self/status')).stdout
  for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) {
    assert.match(status, new RegExp(`^${set}:\\s+0{16}$`, 'm'))
  }
  assert.match(status, /^NoNewPrivs:\s+1$/m)
  assert.match(status, /^Seccomp:\s+2$/m)
  assert.match(status, /^Uid:\s+1000\s+1000\s+1000\s+1000$/m)
  // To the host it is no root either: one who is may write /proc/sys from inside any namespace.
  const outside = (await inside.sh('cat /proc/self/uid_map')).stdout.trim().split(/\s+/)
  assert.equal(outside[0], '1000')
  const { stdout, stderr } = await inside.sh(`
    find /usr/bin /usr/sbin -perm -4000 -exec true {} + && echo searched
    echo x | su -c 'id -u' 2>/dev/null; sudo -n id -u 2>/dev/null; newgrp root -c 'id -u' 2>/dev/null
    cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && /tmp/id -u`)
  assert.equal(stdout, 'searched\n1000\n', stderr)
})

test('there are no other processes to see, to signal or to trace', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const { stdout } = await inside.sh('ls /proc | grep -c "^[0-9]"')
  assert.ok(Number(stdout) <= 8, `${stdout} processes`)
  const tried = await inside.perl(`
    my $pid = ${process.pid};
    print kill(0, $pid), kill(9, $pid), kill(9, 1) && -d "/proc/1" ? " init lives " : " ";
    print syscall(${process.arch === 'x64' ? 101 : 117}, 16, $pid, 0, 0) == 0 ? "traced" : $!+0`)
  const ESRCH = 3
  assert.equal(tried.stdout, `00 init lives ${ESRCH}`)
})

test('namespaces, mounts, devices and the doors of the kernel stay shut', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const { stdout, stderr } = await inside.sh(`
    unshare -U id && echo userns; unshare -m true && echo mountns; unshare -n true && echo netns
    nsenter -t 1 -m -n true && echo entered; setpriv --reuid 0 id && echo root
    mount -t tmpfs none /tmp && echo mounted; mount -o remount,rw /usr && echo remounted; umount /workspace && echo unmounted
    chroot / id && echo chrooted; mknod /tmp/disk b 254 0 && echo device; ls /dev/vda /dev/sda /dev/mem /dev/kmsg /dev/fuse /dev/net
    dmesg && echo log; hostname evil && echo renamed; ulimit -u unlimited; ulimit -c unlimited; bash -c 'ulimit -Hu'`)
  assert.equal(stdout, '256\n', stderr)
  if (process.arch !== 'x64') return
  // clone with CLONE_NEWUSER, keyctl, add_key, bpf, perf_event_open, userfaultfd, setns; io_uring_setup is as if not there.
  const calls = [
    [56, 0x1000_0011],
    [250, 0],
    [248, 0],
    [321, 0],
    [298, 0],
    [323, 0],
    [308, 0],
    [425, 8],
  ]
  const script = calls.map(
    ([call, argument]) => `print syscall(${call}, ${argument}, 0, 0, 0, 0) == -1 ? $!+0 : "done", " ";`,
  )
  const [clone, ...others] = (await inside.perl(script.join(''))).stdout.trim().split(' ')
  assert.ok(['28', '1'].includes(clone!), `clone says ${clone}`)
  assert.deepEqual(others, ['1', '1', '1', '1', '1', '1', '38'])
})

test('the first process of a sandbox cannot be made to outlive bwrap', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  // It is of the same user, and may be traced: what holds it is that the filter is on it, too.
  assert.match((await inside.sh('cat /proc/1/status')).stdout, /^Seccomp:\s+2$/m)
  const prctl = process.arch === 'x64' ? 157 : 167
  // PR_SET_PDEATHSIG with none, SIGTERM and SIGKILL.
  const { stdout } = await inside.perl(
    `print syscall(${prctl}, 1, $_, 0, 0, 0) == -1 ? $!+0 : "done", " " for 0, 15, 9`,
  )
  assert.equal(stdout, '1 1 done ')
})

test('numbers of other system call tables end the process', async (t) => {
  if (process.arch !== 'x64') return t.skip('only x86-64 has them')
  const inside = await openInside(t)
  if (!inside) return
  assert.equal((await inside.perl('syscall(0x40000000 + 39); print "went on"')).stdout, '')
})

test('a fork bomb is bounded, can be paused and is ended, while others go on', async (t) => {
  const inside = await openInside(t, { resources: { pids: 100 } })
  if (!inside) return
  const { launches, started } = inside
  const other = await launches.start()
  const count = await inside.perl(`
    my $n = 0;
    while ($n < 1000) {
      my $pid = fork;
      last unless defined $pid;
      if (!$pid) { close STDOUT; close STDERR; sleep 600 }
      $n++
    }
    print $n`)
  assert.ok(Number(count.stdout) < 100, `${count.stdout} processes`)
  void inside.sh('bomb() { bomb | bomb & }; bomb; while :; do bomb; done')
  await other.session.polled(undefined, 20)
  await launches.provider.pause(started.sandboxId)
  await launches.becomes(started.sandboxId, 'paused')
  await launches.provider.resume(started.sandboxId, started.order)
  await launches.provider.destroy(started.sandboxId)
  await launches.becomes(started.sandboxId, 'gone')
  await other.session.polled(undefined, 5)
})

test('a process cannot even ask for much more memory than its sandbox may use', async (t) => {
  if (process.arch !== 'x64') return t.skip('the number of the system call is that of x86-64')
  const inside = await openInside(t, { resources: { memoryMb: 256 } })
  if (!inside) return
  // mmap, private and writable, of 2 GiB and of 64 MiB.
  const map = (bytes: number): string => `print syscall(9, 0, ${bytes}, 3, 0x22, -1, 0) == -1 ? $!+0 : "mapped", " ";`
  assert.equal((await inside.perl(map(2 ** 31) + map(2 ** 26))).stdout, '12 mapped ')
})

test('processes that together take more memory than the sandbox may end it, and nobody else', async (t) => {
  const inside = await openInside(t, { resources: { memoryMb: 512 } })
  if (!inside) return
  const { launches, started } = inside
  const other = await launches.start()
  void inside.perl('for (1..8) { if (!fork) { my $all = "x" x 209715200; sleep 600 } } sleep 600')
  await launches.becomes(started.sandboxId, 'gone')
  await other.session.polled(undefined, 5)
  const own = await readFile('/proc/self/oom_score_adj', 'utf8')
  assert.ok(Number(own) < 1000, 'the runner is not who the kernel would take first')
})

test('temporary files and shared memory are bounded', async (t) => {
  const inside = await openInside(t, { resources: { diskMb: 16 } })
  if (!inside) return
  const { stdout } = await inside.sh(`
    for place in /tmp /var/tmp /dev/shm; do
      dd if=/dev/zero of=$place/fill bs=1M count=200 2>/dev/null; du -m $place/fill | cut -f1; rm $place/fill
    done`)
  assert.deepEqual(stdout.trim().split('\n'), ['16', '16', '64'])
})

test('a worker that ignores being asked to end is ended', async (t) => {
  const inside = await openInside(t)
  if (!inside) return
  const { launches, started } = inside
  void inside.perl('$SIG{TERM} = $SIG{HUP} = $SIG{INT} = "IGNORE"; setpgrp; sleep 600')
  await launches.provider.destroy(started.sandboxId)
  await launches.becomes(started.sandboxId, 'gone')
})
