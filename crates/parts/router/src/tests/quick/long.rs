//! Long answers: the lane passes them on as far as both sides are quick.

use super::*;

fn body_of(path: &str) -> String {
    match path {
        "/long" | "/long-odd" | "/long-slowly" => "x".repeat(LONG),
        "/longish" => "x".repeat(LONGISH),
        "/brief-odd" => "z".repeat(BRIEF),
        "/some" => "y".repeat(12_000),
        "/none" => String::new(),
        _ => "well".into(),
    }
}

async fn on_one_thread(limits: RequestLimits) -> Site {
    Site::on(World::with_threads(1), limits).await
}

/// Reads as much of the answer as the instance sends before it waits.
async fn half_of_it(client: &mut Client) -> Vec<u8> {
    client.send(&get("/long-slowly")).await;
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'x').count() < LONG / 2 - 200 {
        client.0.read_buf(&mut text).await.unwrap();
    }
    text
}

/// Checks that the connection was reset: nobody takes what came for whole.
async fn is_cut(client: &mut Client) {
    let mut rest = Vec::new();
    let end = tokio::time::timeout(DEADLINE, client.0.read_to_end(&mut rest)).await;
    end.expect("the connection ends").expect_err("by a reset");
}

#[tokio::test]
async fn long_answers_are_whole_and_what_follows_them_is_its_own() {
    let site = on_one_thread(RequestLimits::default()).await;
    let mut client = site.guest().await;
    let mut requests = ASKED;
    for then in [
        "/",
        "/long",
        "/longish",
        "/long-odd",
        "/brief-odd",
        "/some",
        "/chunks",
        "/twice",
        "/none",
        "/last",
        "/dies",
    ] {
        for path in ["/long", then, "/"] {
            client.send(&get(path)).await;
            assert!(client.reply().await.text() == body_of(path), "{path} of /long, {then}, /");
        }
        client.send(&(get("/long") + &get(then) + &get("/"))).await;
        for path in ["/long", then, "/"] {
            assert!(client.reply().await.text() == body_of(path), "{path} of all at once, {then}");
        }
        settle(&mut client).await;
        requests += 6 + ASKED;
    }
    site.counted(requests).await;
}

#[tokio::test]
async fn a_long_answer_passes_as_it_comes() {
    let site = on_one_thread(RequestLimits::default()).await;
    let mut client = site.guest().await;
    let mut text = half_of_it(&mut client).await;
    // This is asked before the answer is whole.
    client.send(&get("/")).await;
    site.means.gate.add_permits(1);
    while text.iter().filter(|byte| **byte == b'x').count() < LONG {
        let count = client.0.read_buf(&mut text).await.unwrap();
        assert!(count > 0, "an answer that ends after {} bytes", text.len());
    }
    let (head, rest) = text.split_at(text.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4);
    assert!(head.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(rest.starts_with(body_of("/long").as_bytes()));
    // Some of the next answer may have come with it.
    let mut next = String::from_utf8(rest[LONG..].to_vec()).unwrap();
    while !next.ends_with("\r\n\r\nwell") {
        next.push(client.0.read_u8().await.unwrap().into());
    }
    settle(&mut client).await;
    site.counted(2 + 2 * ASKED).await;
}

#[tokio::test]
async fn a_long_answer_that_stops_or_is_cut_does_not_look_whole() {
    let limits = RequestLimits { answer_ms: Some(500), ..RequestLimits::default() };
    let site = on_one_thread(limits).await;
    let mut client = site.guest().await;
    half_of_it(&mut client).await;
    is_cut(&mut client).await;
    wait(|| site.in_flight() == 0).await;
    site.means.gate.add_permits(1);

    let mut client = site.guest().await;
    client.send(&get("/long-cut")).await;
    site.means.gate.add_permits(1);
    is_cut(&mut client).await;
    wait(|| site.in_flight() == 0).await;
    let mut client = site.guest().await;
    client.send(&get("/long")).await;
    assert!(client.reply().await.text() == body_of("/long"));
}

#[tokio::test]
async fn a_client_that_leaves_during_a_long_answer_gives_its_place_back() {
    let site = on_one_thread(RequestLimits::default()).await;
    let mut client = site.guest().await;
    half_of_it(&mut client).await;
    client.0.set_zero_linger().unwrap();
    drop(client);
    wait(|| site.in_flight() == 0).await;
    site.means.gate.add_permits(1);
    let mut client = site.guest().await;
    client.send(&get("/long")).await;
    assert!(client.reply().await.text() == body_of("/long"));
    site.counted(2 + 2 * ASKED).await;
}

#[tokio::test]
async fn a_client_that_reads_long_answers_late_gets_all_of_them() {
    const ASKED_MAX: usize = 300;
    let (site, mut counted) = (Site::new().await, 0);
    // The room ends within a head and what comes with it, or within what follows: that depends on
    // what was asked for before.
    let some = ["/some"; 6];
    for (before, paths) in (0..6)
        .flat_map(|count| [["/long", "/long"], ["/some", "/longish"]].map(|paths| (count, paths)))
        .chain([(0, ["/longish", "/longish"])])
    {
        let mut client = site.world.connect_with(64 * 1024).await;
        settle(&mut client).await;
        counted += ASKED;
        let mut asked = Vec::new();
        loop {
            let path = some[..before].get(asked.len()).unwrap_or(&paths[asked.len() % 2]);
            client.send(&get(path)).await;
            asked.push(*path);
            let answered = site.counted(counted + asked.len());
            if tokio::time::timeout(ANSWER_TIME, answered).await.is_err() {
                break;
            }
            assert!(asked.len() < ASKED_MAX, "nobody reads, and all is sent");
        }
        // It said all of that at once.
        if paths[0] == "/longish" {
            wait(|| site.in_flight() == 0).await;
        }
        client.send(&get("/")).await;
        asked.push("/");
        for path in &asked {
            assert!(client.reply().await.text() == body_of(path), "{path} of {asked:?}");
        }
        counted += asked.len();
        site.counted(counted).await;
    }
}

#[tokio::test]
async fn many_get_their_own_long_answers() {
    const CLIENTS: usize = 40;
    const EACH: usize = 2 * ASKED;
    let long = |path: &str| path.repeat(LONG / path.len());
    let echo = move |request: &str| ok(&long(request.split(' ').nth(1).unwrap()));
    let (world, _one, _two) = on_two(echo).await;
    all_ask(&world, CLIENTS, EACH, long).await;
}
