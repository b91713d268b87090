//! The platform under a name of its own, on the port where its applications are: whoever has the
//! name alone, and an authority of the web, logs in, pushes and runs commands.

use serde_json::Value;

use super::pebble::{Manners, Pebble, lab};
use super::{APP, push};
use crate::fixtures::cluster::{await_acquaintance, invitation};
use crate::netns::lab::Host;
use crate::node::Node;
use crate::reach::{Laptop, invite};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

const NAME: &str = "cortex.test";
const STATUS: [&str; 4] = ["-o", "/dev/null", "-w", "%{http_code} %{redirect_url}"];

/// Returns the status of an answer, and where it leads.
fn status(pebble: &Pebble, host: &Host, arguments: &[&str]) -> String {
    pebble.visit(host, &[&STATUS, arguments].concat()).stdout
}

#[test]
fn the_platform_has_a_name_of_its_own_beside_its_applications() {
    let Some((lab, pebble)) = lab(3, &Manners::default()) else { return };
    let [first, second, elsewhere] = [0, 1, 2].map(|at| lab.host(at));
    pebble.lead(NAME, &[first, second]);
    let one = pebble.node(first, &["--platform-domain", NAME]);
    let join = invitation(&one, &[]);
    let two = pebble.node_without(second, &["--join", &join]);
    await_acquaintance(&[&one, &two]);
    push(&one);
    pebble.lead("blog.test", &[second]);
    one.cortex(&["domains", "add", "blog.test", "-a", APP]);
    one.run(&["domains", "add", NAME, "-a", APP]).refused().saying(&["the platform's own name"]);

    // Both nodes answer with the same certificate, and know nobody who brings no token.
    for node in [first, second] {
        pebble.lead(NAME, &[node]);
        wait_for(&format!("https://{NAME}"), STATE_DEADLINE, || {
            let answer = status(&pebble, elsewhere, &[&format!("https://{NAME}/v1/apps")]);
            if answer == "401 " { Ok(()) } else { Err(answer) }
        });
    }
    let plain = status(&pebble, elsewhere, &[&format!("http://{NAME}/v1/apps?x=1")]);
    assert_eq!(plain, format!("301 https://{NAME}/v1/apps?x=1"));

    // An invitation says the name alone, and any node takes it, once.
    let invited = || invite(&one, &["ana", "--role", "operator"]);
    let mut line = invited();
    wait_until("an invitation with the name", || {
        line = invited();
        line.contains(&format!("https://{NAME}#cortex_"))
    });
    pebble.lead(NAME, &[second]);
    let laptop = || Laptop::within(pebble.within(elsewhere), pebble.root());
    let ana = laptop();
    ana.log_in(&line).succeeded();
    laptop().log_in(&line).refused();
    let told = ana.cortex(&["whoami"]);
    assert!(told.contains(&format!("platform: https://{NAME}:443")), "{told}");

    // A program with the name and a token needs nothing else, not even the node port.
    let made: Value =
        serde_json::from_str(&ana.cortex(&["tokens", "create", "ci", "--json"])).expect("JSON");
    let token = made["token"].as_str().expect("a token").to_owned();
    let program = laptop();
    let by_name = |arguments: &[&str]| {
        let mut command = program.command(arguments);
        command.env("CORTEX_URL", format!("https://{NAME}")).env("CORTEX_TOKEN", &token);
        crate::node::run(command, &arguments.join(" "))
    };
    let project = program.project();
    let pushed = ["push", project.to_str().expect("a path"), "-a", "shop"];
    by_name(&pushed).succeeded();
    let said = by_name(&["run", "-a", "shop", "--", "echo", "by name"]).succeeded();
    assert_eq!(said.stdout.trim(), "by name");
    let bearer = format!("Authorization: Bearer {token}");
    let asked = ["-H", &bearer, &format!("https://{NAME}/v1/apps")];
    assert_eq!(status(&pebble, elsewhere, &asked), "200 ");

    // Applications have their names on the same port, and a connection for one is for no other.
    pebble.await_https(elsewhere, "blog.test");
    let host = format!("Host: {NAME}");
    let crossed = ["-H", &host, "-H", &bearer, "https://blog.test/v1/apps"];
    assert_eq!(status(&pebble, elsewhere, &crossed), "421 ");
    let crossed = ["-H", "Host: blog.test", &format!("https://{NAME}/")];
    assert_eq!(status(&pebble, elsewhere, &crossed), "421 ");

    one.cortex(&["tokens", "revoke", "ana", "ci"]);
    wait_until("the end of the token", || status(&pebble, elsewhere, &asked) == "401 ");
    drop::<[Node; 2]>([one, two]);
}
