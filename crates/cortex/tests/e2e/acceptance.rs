//! The whole way of somebody new, from her own computer: invited, logged in, pushed by directory
//! and by Git, on HTTPS at both nodes, followed through the loss of a node, audited, revoked.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::acme::pebble::{Manners, Pebble, lab};
use crate::fixtures::cluster::{await_acquaintance, await_loads, id_of, invitation};
use crate::node::{Node, Outcome, run};
use crate::project::of_files;
use crate::reach::{Laptop, NAME, await_number, check_whole, follow, invite, said, token_name};
use crate::wait::{STATE_DEADLINE, wait_for};

const DOMAIN: &str = "blog.test";
const OTHER: &str = "other";
/// The longest time for which a revoked token may be good on any node.
const REVOKED_WITHIN: Duration = Duration::from_secs(2);

/// Runs Git on the laptop, with the helper that `cortex git remote` has linked there.
fn git(laptop: &Laptop, arguments: &[&str]) -> Outcome {
    let words = laptop.enter();
    let (program, before) = words.split_first().expect("it is on a network of its own");
    let mut command = Command::new(program);
    let (home, path) = (laptop.home().display(), std::env::var("PATH").expect("a path"));
    command.args(before).arg("git").args(arguments).env_clear();
    command.env("PATH", format!("{home}/.local/bin:{path}")).env("HOME", laptop.home());
    command.env("XDG_RUNTIME_DIR", laptop.home()).current_dir(laptop.home().join(NAME));
    run(command, &format!("git {}", arguments.join(" ")))
}

/// Puts the project under version control, as it is.
fn commit(laptop: &Laptop) {
    for arguments in [
        &["init", "-q", "-b", "main"][..],
        &["config", "user.email", "ana@example.org"],
        &["config", "user.name", "ana"],
        &["add", "-A"],
        &["commit", "-q", "-m", "first"],
    ] {
        git(laptop, arguments).succeeded();
    }
}

/// Checks that her token does nothing that is not hers.
fn check_refused(laptop: &Laptop) {
    for hidden in [
        &["ps", "-a", OTHER][..],
        &["logs", "-a", OTHER],
        &["config", "-a", OTHER],
        &["scale", "web=2", "-a", OTHER],
        &["rollback", "-a", OTHER],
        &["domains", "add", "other.test", "-a", OTHER],
        &["apps", "destroy", OTHER],
        &["run", "-a", OTHER, "--", "true"],
    ] {
        laptop.run(hidden).refused().saying(&["no application"]);
    }
    for above in [
        &["apps", "destroy", NAME][..],
        &["nodes"],
        &["users"],
        &["users", "add", "eve", "--role", "owner"],
        &["teams"],
        &["audit"],
        &["isolation", "none"],
    ] {
        laptop.run(above).refused().saying(&["does not have the right"]);
    }
    laptop.run(&["store", "ls", "app"]).refused().saying(&["owner of the machine"]);
}

fn cluster(lab: &crate::netns::lab::Lab, pebble: &Pebble) -> [Node; 2] {
    let one = pebble.node(lab.host(0), &[]);
    let join = invitation(&one, &[]);
    let two = pebble.node_without(lab.host(1), &["--join", &join]);
    let nodes = [one, two];
    await_acquaintance(&[&nodes[0], &nodes[1]]);
    await_loads(&[&nodes[0], &nodes[1]]);
    nodes
}

#[test]
fn a_developer_goes_the_whole_way_from_her_own_computer() {
    let Some((lab, pebble)) = lab(3, &Manners::default()) else { return };
    let [mut one, two] = cluster(&lab, &pebble);
    for name in [NAME, OTHER] {
        one.cortex(&["apps", "create", name]);
    }
    let project = one.path(OTHER);
    let server = "web: python3 -m http.server $PORT --bind $HOST\n";
    of_files(&project, &[("Procfile", server), ("index.html", "of somebody else")]);
    one.cortex(&["config", "set", "SECRET=of-somebody-else", "-a", OTHER]);
    one.push_as_it_is(&project, OTHER).succeeded();

    let laptop = Laptop::on(lab.host(2));
    laptop.log_in(&invite(&one, &["ana", "--role", "developer", "-a", NAME])).succeeded();
    let project = laptop.project();
    laptop.run(&["push", project.to_str().expect("UTF-8"), "-a", NAME]).succeeded();
    commit(&laptop);
    let mut command = laptop.command(&["git", "remote", "-a", NAME]);
    command.current_dir(&project);
    run(command, "cortex git remote").succeeded();
    let pushed = git(&laptop, &["push", "cortex", "main"]).succeeded();
    assert!(pushed.stderr.contains("main -> main"), "{pushed:?}");

    let script = "cat /proc/*/environ | tr '\\0' '\\n'";
    let seen = laptop.cortex(&["run", "-a", NAME, "--", "sh", "-c", script]);
    assert!(seen.contains("CORTEX_") && !seen.contains("of-somebody-else"), "{seen}");

    pebble.lead(DOMAIN, &[lab.host(0), lab.host(1)]);
    laptop.cortex(&["domains", "add", DOMAIN, "-a", NAME]);
    pebble.await_https(lab.host(2), DOMAIN);
    for n in [0, 1] {
        let at = format!("{DOMAIN}:443:{}", lab.host(n).address);
        wait_for(&format!("https on node {n}"), STATE_DEADLINE, || {
            let url = format!("https://{DOMAIN}/");
            let outcome = pebble.visit(lab.host(2), &["--fail", "--resolve", &at, &url]);
            match outcome.stdout.contains("hello from a laptop") {
                true => Ok(()),
                false => Err(format!("{outcome:?}")),
            }
        });
    }

    laptop.cortex(&["scale", "-a", NAME, "web=1", "count=1"]);
    one.await_ready(NAME, "count", 1);
    let log = laptop.home().join("log");
    let mut following = follow(&laptop, &["logs", "-f", "-p", "count", "-a", NAME], &log);
    let seen = await_number(&log, 20);
    assert!(laptop.cortex(&["whoami"]).contains(&format!("answered by {}", id_of(&one))));
    // Its shims keep the instances for their lease, if they are here; it is back before that ends.
    one.kill_nine();
    one.up();
    check_whole(&log, &await_number(&log, seen.last().expect("some") + 60));

    check_refused(&laptop);
    let audit = two.cortex(&["audit", "-n", "500"]);
    for change in ["login", "apps/blog/releases", "apps/blog/run", "domains", "apps/blog/scale"] {
        let is_hers = |line: &str| line.contains("ana") && line.contains(change);
        assert!(audit.lines().any(is_hers), "{change} in\n{audit}");
    }

    two.cortex(&["tokens", "revoke", "ana", &token_name(&two)]);
    let revoked = Instant::now();
    wait_for("the log to end", STATE_DEADLINE, || match following.0.try_wait() {
        Ok(Some(status)) if !status.success() => Ok(()),
        other => Err(format!("{other:?}, {}", said(&log))),
    });
    assert!(fs::metadata(&log).is_ok_and(|file| file.len() > 0));
    // The rest of that time is waited for, so that what is refused then is refused on both.
    wait_for("two seconds", STATE_DEADLINE, || match revoked.elapsed() >= REVOKED_WITHIN {
        true => Ok(()),
        false => Err("they are not over".to_owned()),
    });
    for node in [&one, &two] {
        laptop.run(&["ps", "-a", NAME]).refused().saying(&["was revoked"]);
        node.cortex(&["ps", "-a", NAME]);
    }
}
