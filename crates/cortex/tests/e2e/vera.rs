//! `vera`, the second name of the binary: each command of the thesis's appendix A against a real
//! node, in the order of the appendix.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::fixtures::cluster::{await_state, first, id_of};
use crate::machine::free_port;
use crate::node::{Node, Outcome, alone_with_chosen_ports, binary, run};
use crate::outside::Site;
use crate::project::{copy_of_example, edit, of_files, tool};
use crate::wait::{STATE_DEADLINE, wait_for};

/// The configuration file of the thesis, with another host.
const CONFIGURATION: &str = "[app]\n; This is the only required value. Other values are specified \
                             for\n; convenience, but they can also be set as command line \
                             options.\nname = TestApp\n\n[miranda]\nhost = 127.0.0.1\n\
                             port = 8205 ; Default Miranda port number.\n";

struct Client<'a> {
    node: &'a Node,
    name: PathBuf,
    project: PathBuf,
}

impl<'a> Client<'a> {
    fn new(node: &'a Node) -> Client<'a> {
        let name = node.path("vera");
        std::os::unix::fs::symlink(binary(), &name).expect("a second name");
        let project = node.path("source");
        copy_of_example("hello", &project);
        of_files(&project, &[(".veraconfig", CONFIGURATION)]);
        Client { node, name, project }
    }

    fn vera(&self, arguments: &[&str]) -> Outcome {
        self.vera_in(&self.project, arguments)
    }

    fn vera_in(&self, directory: &Path, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(&self.name);
        command.args(arguments).env("CORTEX_DATA_DIR", self.node.data()).current_dir(directory);
        run(command, &format!("vera {}", arguments.join(" ")))
    }

    fn commit(&self) {
        let identity = ["-c", "user.name=Test", "-c", "user.email=test@localhost"];
        tool(&self.project, "git", &["add", "--all"]);
        tool(&self.project, "git", &[&identity[..], &["commit", "--quiet", "-m", "It"]].concat());
    }

    fn await_info(&self, expected: &str) {
        wait_for("the settings of the thesis", STATE_DEADLINE, || {
            let shown = self.vera(&["--info"]).succeeded().stdout;
            if shown == expected { Ok(()) } else { Err(shown) }
        });
    }
}

fn await_answer(site: &Site, needle: &str) {
    wait_for("an answer", STATE_DEADLINE, || match site.try_get("/") {
        Ok(answer) if answer.status == 200 && answer.body.contains(needle) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn the_commands_of_the_appendix_do_what_it_says() {
    let _alone = alone_with_chosen_ports();
    let node = first(&[]);
    let client = Client::new(&node);
    tool(&client.project, "git", &["init", "--quiet"]);
    client.commit();
    let nowhere = client.vera_in(node.directory.path(), &["--info"]).refused();
    nowhere.saying(&["no .veraconfig", "name ="]);
    client.vera(&[]).refused().saying(&["--new-app", "--add-node"]);
    client.vera(&["--info"]).refused().saying(&["no application 'testapp'"]);

    // A.1. Setting up a new application.
    client.vera(&["--new-app", "--app-type", "cook"]).refused().saying(&["cook"]);
    client.vera(&["--new-app", "--app-type", "python"]).succeeded();
    client.vera(&["--push", "--repo-type", "git"]).succeeded();
    let port = free_port();
    client.vera(&["--ariel-port", &port.to_string()]).succeeded();
    client.vera(&["--instances", "5"]).succeeded();
    node.await_ready("testapp", "web", 5);
    let site = Site { host: format!("127.0.0.1:{port}"), port };
    await_answer(&site, "Hello from");

    // A.2. Updating application to a newer version.
    edit(&client.project.join("app.py"), "Hello from", "Hello again from");
    client.commit();
    client.vera(&["--push"]).succeeded();
    await_answer(&site, "Hello again from");

    // A.3. Modifying the number of application instances. A.4. Monitoring platform status.
    client.vera(&["--instances", "7"]).succeeded();
    let settings = "TestApp settings\n\nApplication type: python\n";
    client.await_info(&format!("{settings}Port: {port}\nInstances: 7\nRunning: 7\n"));
    client.vera(&["--instances", "2", "--info"]).succeeded();
    client.await_info(&format!("{settings}Port: {port}\nInstances: 2\nRunning: 2\n"));
}

/// A.5. Adding a new Miranda instance.
#[test]
fn a_brand_new_node_is_added_once_its_fingerprint_is_confirmed() {
    let node = first(&[]);
    let client = Client::new(&node);
    let address = format!("127.0.0.1:{}", free_port());
    client.vera(&["--add-node", &address]).refused().saying(&["no new node", "--await"]);
    // A member is not a node that waits.
    let member = wait_for("its address", STATE_DEADLINE, || {
        let row = await_state(&node, &id_of(&node), "alive");
        row["addresses"][0].as_str().map(String::from).ok_or_else(|| row.to_string())
    });
    client.vera(&["--add-node", &member]).refused().saying(&["does not wait"]);

    let directory = TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
    let log = directory.path().join("node.1.log");
    let options = ["--listen".to_string(), address.clone(), "--await".into(), "--load=20".into()];
    let starting = std::thread::spawn(move || {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Node::start_in(directory, &options)
    });
    let fingerprint = wait_for("the new node to show its fingerprint", STATE_DEADLINE, || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let line = said.lines().find_map(|line| line.strip_prefix("Its fingerprint is "));
        line.map(String::from).ok_or(said)
    });
    let asked = client.vera(&["--add-node", &address]).refused().saying(&["--fingerprint"]);
    assert!(asked.stdout.contains(&fingerprint), "{asked:?}");
    let wrong = client.vera(&["--add-node", &address, "--fingerprint", "0000 1111"]).refused();
    wrong.saying(&["another machine"]);
    let added = client.vera(&["--add-node", &address, "--fingerprint", &fingerprint]).succeeded();
    assert!(added.stdout.contains(&fingerprint), "{added:?}");
    let new = starting.join().expect("it starts");
    assert!(added.stdout.contains(&id_of(&new)), "{added:?}");
    await_state(&node, &id_of(&new), "alive");
    node.cortex(&["store", "set", "it::replicates", "yes"]);
    wait_for("the new node to have it", STATE_DEADLINE, || {
        let got = new.run(&["store", "get", "it::replicates"]);
        if got.stdout == "yes" { Ok(()) } else { Err(format!("{got:?}")) }
    });
}
