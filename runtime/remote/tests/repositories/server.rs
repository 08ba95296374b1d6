//! A server with the interface of S3, and a web server, with faults.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Objects of one page of a listing.
const PAGE: usize = 2;

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The path without the query.
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn is_listing(&self) -> bool {
        self.query.contains_key("list-type")
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// The connection breaks after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// Pause before the last byte.
    pub(crate) stall: Duration,
}

impl Reply {
    pub(crate) fn of(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, body: body.into(), ..Reply::default() }
    }
}

/// Answers a request in place of the server, and may change its objects.
pub(crate) type Fault = Box<dyn FnMut(&Request, &mut Objects) -> Option<Reply> + Send>;

pub(crate) type Objects = BTreeMap<String, Vec<u8>>;

pub(crate) struct State {
    /// Contents by name, without the bucket.
    pub(crate) objects: Objects,
    pub(crate) fault: Fault,
    pub(crate) requests: Vec<Request>,
}

/// A server on a port of its own. Its thread runs until the process ends.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn new(objects: &[(&str, &str)]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let objects = objects.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
        let state = State { objects, fault: Box::new(|_, _| None), requests: Vec::new() };
        let server = Server { address, state: Arc::new(Mutex::new(state)) };
        let own = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(stream.unwrap()));
            }
        });
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn set(&self, name: &str, text: &str) {
        self.state().objects.insert(name.into(), text.as_bytes().to_vec());
    }

    pub(crate) fn fail(&self, fault: impl FnMut(&Request, &mut Objects) -> Option<Reply> + Send + 'static) {
        self.state().fault = Box::new(fault);
    }

    /// The requests for objects, without those for listings.
    pub(crate) fn gets(&self) -> Vec<Request> {
        self.state().requests.iter().filter(|request| !request.is_listing()).cloned().collect()
    }

    fn serve(&self, stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let Some(Ok(first)) = lines.next() else { return };
        let target = first.split(' ').nth(1).unwrap().to_owned();
        let headers = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
        let headers = headers.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        let headers = headers.collect();
        let (path, query) = target.split_once('?').unwrap_or((target.as_str(), ""));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = pairs.map(|(name, value)| (name.into(), value.replace("%2F", "/"))).collect();
        let reply = self.answer(&Request { path: path.into(), query, headers });
        // The client may have gone.
        let _ = send(stream, &reply);
    }

    fn answer(&self, request: &Request) -> Reply {
        let mut state = self.state();
        state.requests.push(request.clone());
        let State { objects, fault, .. } = &mut *state;
        if let Some(reply) = fault(request, objects) {
            return reply;
        }
        if request.is_listing() {
            return listing(objects, &request.query);
        }
        // Of a bucket, or of a folder of this name.
        let Some(content) =
            request.path.strip_prefix("/models/").and_then(|name| objects.get(&name.replace("%20", " ")))
        else {
            return Reply::of(404, "");
        };
        if request.header("if-match").is_some_and(|wanted| wanted != version(content)) {
            return Reply::of(412, "");
        }
        let range =
            request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let begin: usize = range.unwrap_or(0);
        let mut reply = Reply::of(if begin > 0 { 206 } else { 200 }, &content[begin..]);
        if begin > 0 {
            let all = content.len();
            reply.headers.push(("Content-Range", format!("bytes {begin}-{}/{all}", all - 1)));
        }
        reply
    }
}

/// The version of a content, as listings state it.
fn version(content: &[u8]) -> String {
    let sum = content.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("\"{sum:x}\"")
}

fn listing(objects: &Objects, query: &BTreeMap<String, String>) -> Reply {
    let prefix = query.get("prefix").map_or("", String::as_str);
    let begin: usize = query.get("continuation-token").map_or(0, |token| token.parse().unwrap());
    let all: Vec<(&String, &Vec<u8>)> = objects.iter().filter(|(name, _)| name.starts_with(prefix)).collect();
    let page = &all[begin..all.len().min(begin + PAGE)];
    let mut xml = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><EncodingType>url</EncodingType>".to_owned();
    for (name, content) in page {
        let (name, bytes, version) = (name.replace(' ', "+"), content.len(), version(content).replace('"', "&quot;"));
        xml += &format!("<Contents><Key>{name}</Key><ETag>{version}</ETag><Size>{bytes}</Size></Contents>");
    }
    let next = begin + page.len();
    if next < all.len() {
        xml += &format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>");
    }
    Reply::of(200, xml + "</ListBucketResult>")
}

fn send(mut stream: TcpStream, reply: &Reply) -> std::io::Result<()> {
    let Reply { status, headers, body, cut, stall } = reply;
    write!(stream, "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n", body.len())?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    let end = cut.unwrap_or(body.len());
    let before = if stall.is_zero() { end } else { end.saturating_sub(1) };
    stream.write_all(&body[..before])?;
    stream.flush()?;
    std::thread::sleep(*stall);
    stream.write_all(&body[before..end])
}
