//! Sessions as shims hold them: clients that lie, hang up, or come back after the command's end and
//! after the node process that started it.

use agent::launcher::Launcher;
use bytes::BytesMut;
use model::Timestamp;
use runtime::members::BoxedStream;
use session_core::client::{Client, ClientAction};
use session_core::frame::{Attach, SessionDecoder, SessionFrame};
use session_core::{OUTPUT_KEPT_BYTES, VERSION};
use shim::spec::{LaunchSpec, Purpose, SessionSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{DEADLINE, ShimFixture, application, exit_of};

const NOW: Timestamp = Timestamp(0);

fn session() -> SessionSpec {
    SessionSpec {
        id: "n1.abc".into(),
        number: 1,
        by: "ana".into(),
        command: "a command".into(),
        release: "v1.a".parse().unwrap(),
        build: "v1.a".parse().unwrap(),
        terminal: None,
        restart: 0,
        detached: false,
    }
}

fn command(place: &ShimFixture, script: &str) -> LaunchSpec {
    let purpose = Purpose::Task { application: application(), name: "run.1".into() };
    LaunchSpec { purpose, port: None, ports: Default::default(), ..place.shell(script) }
}

async fn say(stream: &mut BoxedStream, frames: &[SessionFrame]) {
    let mut out = BytesMut::new();
    frames.iter().for_each(|frame| frame.write(&mut out));
    stream.write_all(&out).await.unwrap();
}

/// Returns all that comes until the other end closes the connection.
async fn hear(mut stream: BoxedStream) -> Vec<SessionFrame> {
    let (mut decoder, mut frames) = (SessionDecoder::default(), Vec::new());
    let hearing = async {
        while stream.read_buf(decoder.buffer()).await.unwrap_or(0) > 0 {
            while let Some(frame) = decoder.frame().unwrap() {
                frames.push(frame);
            }
        }
    };
    tokio::time::timeout(DEADLINE, hearing).await.expect("it closes the connection");
    frames
}

/// Goes on with a session to its end on this connection; returns its output and its exit code.
async fn finish(client: &mut Client, mut stream: BoxedStream) -> (Vec<u8>, u8) {
    let (mut out, mut decoder, mut printed) = (BytesMut::new(), SessionDecoder::default(), vec![]);
    client.connect(NOW, false, &mut out);
    loop {
        client.speak(NOW, &mut out, 64 << 10);
        stream.write_all(&out.split()).await.unwrap();
        if let Some(end) = client.end() {
            return (printed, end.code);
        }
        let count = stream.read_buf(decoder.buffer());
        let count = tokio::time::timeout(DEADLINE, count).await.expect("something comes").unwrap();
        assert!(count > 0, "it was cut off");
        while let Some(frame) = decoder.frame().unwrap() {
            if let Some(ClientAction::Print(_, bytes)) = client.hear(NOW, frame).unwrap() {
                client.printed(bytes.len());
                printed.extend_from_slice(&bytes);
            }
        }
    }
}

#[tokio::test]
async fn frames_that_lie_end_their_connection_alone() {
    let place = ShimFixture::new();
    let spec = command(&place, "read line; echo got $line; exit 6");
    let held = place.launcher().launch_session(spec, session()).await.unwrap();
    let attach = SessionFrame::Attach(Attach { v: VERSION, resume: None, size: None });
    let bytes = || bytes::Bytes::from_static(b"x\n");
    for lie in [
        vec![SessionFrame::Ping],
        vec![SessionFrame::Input { offset: 0, bytes: bytes() }],
        vec![SessionFrame::Attach(Attach { v: 99, resume: None, size: None })],
        vec![attach.clone(), SessionFrame::Input { offset: 7, bytes: bytes() }],
        vec![attach.clone(), SessionFrame::Input { offset: u64::MAX - 9, bytes: bytes() }],
        vec![attach.clone(), SessionFrame::InputEnd(3)],
        vec![attach.clone(), SessionFrame::Printed(1)],
        vec![attach.clone(), SessionFrame::Signal { place: 2, signal: 9 }],
        vec![attach.clone(), SessionFrame::Done],
        vec![attach.clone(), SessionFrame::Started("x".into())],
    ] {
        let mut stream = held.attach("eve").await.unwrap();
        say(&mut stream, &lie).await;
        let last = hear(stream).await.pop();
        assert!(matches!(last, Some(SessionFrame::Failed(_))), "{lie:?}: {last:?}");
    }
    for raw in [&[1, 0xff, 0xff, 0xff, 0xff][..], &[5, 0, 0, 0, 1, 9], &[200; 300]] {
        let mut stream = held.attach("eve").await.unwrap();
        stream.write_all(raw).await.unwrap();
        stream.shutdown().await.unwrap();
        hear(stream).await;
    }
    // Those that come and say nothing keep nobody out.
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(held.attach("eve").await.unwrap());
    }
    assert!(held.exit().borrow().is_none(), "it runs");
    let mut client = Client::new(None, NOW);
    client.type_in(b"this\n");
    let (printed, code) = finish(&mut client, held.attach("ana").await.unwrap()).await;
    assert_eq!((printed.as_slice(), code), (&b"got this\n"[..], 6));
    tokio::time::timeout(DEADLINE, held.gone()).await.expect("it is forgotten");
}

#[tokio::test]
async fn an_end_waits_with_all_output_for_a_later_node_process() {
    let place = ShimFixture::new();
    // More than is kept: it ends only once somebody reads.
    let count = OUTPUT_KEPT_BYTES + 300_000;
    let script = format!("head -c {count} /dev/zero; exit 4");
    let held = place.launcher().launch_session(command(&place, &script), session()).await.unwrap();
    drop(held);
    let launcher = place.launcher();
    let held = launcher.adopt().await.unwrap().remove(0);
    assert_eq!(held.session(), Some(&session()));
    let mut client = Client::new(None, NOW);
    let mut out = BytesMut::new();
    // A client that is cut off at once has had nothing.
    let mut stream = held.attach("ana").await.unwrap();
    client.connect(NOW, false, &mut out);
    stream.write_all(&out).await.unwrap();
    drop(stream);
    client.cut();
    let (printed, code) = finish(&mut client, held.attach("ana").await.unwrap()).await;
    assert_eq!((printed.len(), code), (count, 4));
    assert_eq!(exit_of(&*held).await.code, Some(4));
}

#[tokio::test]
async fn nobody_hangs_up_on_somebody_who_is_attached() {
    let place = ShimFixture::new();
    let spec = command(&place, "exec sleep 1000");
    let held = place.launcher().launch_session(spec, session()).await.unwrap();
    let mut stream = held.attach("ana").await.unwrap();
    say(&mut stream, &[SessionFrame::Attach(Attach { v: VERSION, resume: None, size: None })])
        .await;
    let mut greeting = [0; 1];
    stream.read_exact(&mut greeting).await.unwrap();
    held.hang_up().await.unwrap();
    assert!(held.exit().borrow().is_none());
    drop(stream);
    // The shim sees the end of the connection and this in either order.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while held.exit().borrow().is_none() {
        assert!(tokio::time::Instant::now() < deadline, "it was not hung up on");
        held.hang_up().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let how = exit_of(&*held).await.how;
    assert_eq!(how, "killed by signal 1 (SIGHUP) (its client went away)");
}
