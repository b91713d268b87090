//! The two stories of the thesis's appendix C, as they are told there: real nodes and processes,
//! with requests counted from outside.

use std::path::PathBuf;

use crate::fixtures::cluster::{await_state, cluster, id_of, join};
use crate::node::Node;
use crate::outside::{Callers, Site};
use crate::project::{copy_of_example, edit};
use crate::wait::{STATE_DEADLINE, wait_for};

/// The roles of the two hosts that keep the store.
const STORE: [&str; 2] = ["--roles", "store"];
/// The roles of the host that takes requests and checks.
const FRONT: [&str; 2] = ["--roles", "router,checker"];
/// The roles of the hosts that run applications.
const HOST: [&str; 2] = ["--roles", "agent"];

struct Application<'a> {
    name: &'a str,
    project: PathBuf,
    site: Site,
}

/// Pushes an application at `at`; it is asked for at `front`.
fn publish<'a>(at: &Node, front: &Node, name: &'a str) -> Application<'a> {
    let project = at.path(name);
    copy_of_example("hello", &project);
    at.try_push(&project, name).succeeded();
    let site =
        Site { host: format!("{name}.localhost:{}", front.http_port), port: front.http_port };
    wait_for("an answer", STATE_DEADLINE, || {
        let answer = site.try_get("/")?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    Application { name, project, site }
}

fn scale(at: &Node, application: &Application, count: usize) {
    at.cortex(&["scale", "-a", application.name, &format!("web={count}")]);
    at.await_ready(application.name, "web", count);
}

fn hosts_of(at: &Node, application: &Application) -> Vec<String> {
    at.ready(application.name, "web").into_iter().map(|row| row.node).collect()
}

/// C.1: a website, a recruitment service and an application to sign up for classes; two hosts with
/// the store, one with router and checker, and machines that run the applications.
#[test]
fn a_university_hosts_its_applications_on_roles_of_their_own() {
    let [store, second] = cluster([&STORE, &STORE]);
    let front = join(&store, &FRONT);
    let (one, mut two) = (join(&store, &HOST), join(&second, &HOST));
    for node in [&store, &second] {
        for other in [&front, &one, &two] {
            await_state(node, &id_of(other), "alive");
        }
    }
    let [website, recruitment, classes] =
        ["website", "recruitment", "classes"].map(|name| publish(&store, &front, name));
    let all = [&website, &recruitment, &classes];
    all.iter().for_each(|one| scale(&store, one, 2));
    let gently =
        |one: &Application<'_>| Callers::start_gently(&one.site, "/", &["Hello", "Welcome"]);
    let callers: Vec<Callers> = all.iter().map(|one| gently(one)).collect();
    let all_answer = || callers.iter().for_each(|callers| callers.answered_more(20));
    all_answer();

    // A new version comes with just one command.
    edit(&website.project.join("app.py"), "Hello from", "Welcome from");
    store.push_as_it_is(&website.project, website.name).succeeded();
    wait_for("the new version", STATE_DEADLINE, || {
        let body = website.site.try_get("/")?.body;
        if body.contains("Welcome") { Ok(()) } else { Err(body) }
    });
    all_answer();

    // During the recruitment that service gets more instances; afterwards the classes do.
    scale(&store, &recruitment, 6);
    all_answer();
    scale(&store, &recruitment, 1);
    scale(&store, &classes, 6);
    all_answer();

    // A machine fails: all services are still there, on the other one.
    let (left, lost) = (id_of(&one), id_of(&two));
    wait_for("both machines to be used", STATE_DEADLINE, || {
        let used = hosts_of(&store, &classes);
        if used.contains(&left) && used.contains(&lost) { Ok(()) } else { Err(format!("{used:?}")) }
    });
    two.kill_nine();
    for (application, count) in [(&website, 2), (&recruitment, 1), (&classes, 6)] {
        wait_for("the other one to run it", STATE_DEADLINE, || {
            let used = hosts_of(&store, application);
            let there = used.iter().filter(|host| **host == left).count();
            if there == count { Ok(()) } else { Err(format!("{}: {used:?}", application.name)) }
        });
    }
    all_answer();
    callers.into_iter().for_each(Callers::finish_without_failure);
}

/// C.2: three rented machines, two with the store and one with router and checker; applications run
/// on shared hosts, whose only part is the agent. One application becomes a success.
#[test]
fn students_on_a_budget_add_a_host_when_an_application_succeeds() {
    let [store, second] = cluster([&STORE, &STORE]);
    let front = join(&store, &FRONT);
    let shared = join(&store, &HOST);
    for other in [&front, &shared] {
        await_state(&store, &id_of(other), "alive");
        await_state(&second, &id_of(other), "alive");
    }
    let [chess, recipes] = ["chess", "recipes"].map(|name| publish(&store, &front, name));
    [&chess, &recipes].iter().for_each(|one| scale(&store, one, 1));
    let both = [&chess, &recipes].map(|one| Callers::start_gently(&one.site, "/", &["Hello"]));
    both.iter().for_each(|callers| callers.answered_more(20));

    // A success: another shared host, with a single part, and the application is scaled up.
    let rented = join(&second, &HOST);
    let (old, new) = (id_of(&shared), id_of(&rented));
    await_state(&store, &new, "alive");
    scale(&store, &chess, 6);
    wait_for("the new host to take its part", STATE_DEADLINE, || {
        let used = hosts_of(&store, &chess);
        if used.contains(&new) && used.contains(&old) { Ok(()) } else { Err(format!("{used:?}")) }
    });
    // The nodes that keep the store or take requests run nothing, and shared hosts open no public
    // port.
    let used = [hosts_of(&store, &chess), hosts_of(&store, &recipes)].concat();
    assert!(used.iter().all(|host| *host == old || *host == new), "{used:?}");
    for host in [&shared, &rented] {
        let public = Site { host: chess.site.host.clone(), port: host.http_port };
        assert!(public.try_get("/").is_err(), "a shared host takes nothing from the public");
    }
    both.iter().for_each(|callers| callers.answered_more(20));
    both.into_iter().for_each(Callers::finish_without_failure);
}
