//! Scheduled commands on two nodes: each due time is run once, seen in logs and listings.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fixtures::cluster::cluster;
use crate::node::Node;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "clock";
/// The resolution of schedules.
const MINUTE: Duration = Duration::from_secs(60);

const SERVER: &str = "import http.server, os
http.server.HTTPServer((os.environ['HOST'], int(os.environ['PORT'])),
    http.server.SimpleHTTPRequestHandler).serve_forever()
";

#[test]
fn a_scheduled_command_runs_once_per_due_time_in_the_cluster() {
    let [one, two] = cluster([&[], &[]]);
    let project = one.path(NAME);
    let seen = one.path("seen");
    let cron = format!(
        "[[cron]]\nname = 'tick'\nschedule = '* * * * *'\ntimezone = 'Europe/Berlin'\n\
         command = 'echo tick; echo $CORTEX_DUE >> {}'\n\
         [[cron]]\nname = 'broken'\nschedule = '* * * * *'\ncommand = 'exit 3'\n",
        seen.display()
    );
    let procfile = ("Procfile", "web: python3 server.py\n");
    of_files(&project, &[procfile, ("server.py", SERVER), ("cortex.toml", &cron)]);
    one.push(&project, NAME);
    let dues = || {
        let text = std::fs::read_to_string(&seen).unwrap_or_default();
        let mut dues: BTreeMap<String, usize> = BTreeMap::new();
        text.lines().for_each(|line| *dues.entry(line.into()).or_default() += 1);
        dues
    };
    wait_for("two due times to be run", 2 * MINUTE + STATE_DEADLINE, || {
        let dues = dues();
        if dues.len() >= 2 { Ok(()) } else { Err(format!("{dues:?}")) }
    });
    assert!(dues().values().all(|times| *times == 1), "each once: {:?}", dues());
    let rows = wait_for("a failed run to be listed", STATE_DEADLINE, || {
        let rows = two.rows(NAME);
        let failed = rows.iter().any(|row| row.process == "cron.broken" && row.state == "crashed");
        if failed { Ok(rows) } else { Err(format!("{rows:#?}")) }
    });
    let tick = rows.iter().find(|row| row.process == "cron.tick").expect("it is listed");
    let id = |node: &Node| std::fs::read_to_string(node.data().join("node.id")).expect("its id");
    let ran = if id(&one).trim() == tick.node { &one } else { &two };
    let logs = ran.cortex(&["logs", "-a", NAME, "-p", "cron.tick"]);
    assert!(logs.contains("tick"), "{logs}");
}
