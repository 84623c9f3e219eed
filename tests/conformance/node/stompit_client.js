// Scenarios for tests/conformance/test_stomp_stompit.py, run with stompit: node stompit_client.js SCENARIO JSON
// Prints one JSON value.
'use strict';

const fs = require('fs');
const stompit = require('stompit');

const scenario = process.argv[2];
const given = JSON.parse(process.argv[3]);

function connect(headers = {}, extra = {}) {
  return new Promise((resolve, reject) => {
    const options = {
      host: '127.0.0.1',
      port: given.port,
      connectHeaders: { host: '/', login: given.user, passcode: given.password, 'heart-beat': '0,0', ...headers },
      ...extra,
    };
    stompit.connect(options, (error, client) => (error ? reject(error) : resolve(client)));
  });
}

function send(client, headers, body) {
  return new Promise((resolve, reject) => {
    const frame = client.send({ destination: given.destination, ...headers }, { onReceipt: resolve, onError: reject });
    frame.end(body);
  });
}

function subscribe(client, headers, handle) {
  return client.subscribe({ destination: given.destination, ...headers }, (error, message) => {
    if (error) {
      return handle(error);
    }
    message.readString('utf-8', (problem, body) => handle(problem, body, message));
  });
}

function receive(client, headers, count, acknowledge = () => {}) {
  return new Promise((resolve, reject) => {
    const found = [];
    const subscription = subscribe(client, headers, (error, body, message) => {
      if (error) {
        return reject(error);
      }
      acknowledge(message, found.length);
      found.push({ body, headers: message.headers });
      if (found.length === count) {
        subscription.unsubscribe();
        resolve(found);
      }
    });
  });
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const scenarios = {
  async roundTrip() {
    const client = await connect();
    await send(client, { 'content-type': 'text/plain', thing: 'a:b\\c' }, given.body);
    const found = await receive(client, { ack: 'auto' }, 1);
    client.disconnect();
    return found;
  },

  async named() {
    // The name asked for (SNI) is also the one that the certificate must be for.
    const ca = fs.readFileSync(`${given.certificates}/ca.pem`);
    const client = await connect({}, { ssl: true, ca, servername: given.host, rejectUnauthorized: true });
    await send(client, {}, 'secret');
    const found = await receive(client, { ack: 'auto' }, 1);
    client.disconnect();
    return found.map((item) => item.body);
  },

  negotiated() {
    // What the broker answers to the versions that this client says it speaks: CONNECTED's or ERROR's version.
    return new Promise((resolve) => {
      process.on('uncaughtException', (error) => resolve(['refused', error.message]));
      connect({ 'accept-version': given.versions }).then(
        (client) => {
          resolve(['connected', client.headers.version || '1.0']);
          client.disconnect();
        },
        (error) => resolve(['refused', error.message]),
      );
    });
  },

  refused() {
    // stompit raises what an ERROR frame says twice, the second time where only the process can catch it.
    return new Promise((resolve) => {
      process.on('uncaughtException', (error) => resolve(error.message));
      connect().then(
        () => resolve('connected'),
        (error) => resolve(error.message),
      );
    });
  },

  async individual() {
    const client = await connect();
    for (const body of ['a', 'b', 'c']) {
      await send(client, {}, body);
    }
    await receive(client, { ack: 'client-individual' }, 3, (message, index) => index === 1 && client.ack(message));
    await new Promise((resolve) => client.disconnect(resolve));
    const again = await connect();
    const found = await receive(again, { ack: 'auto' }, 2);
    again.disconnect();
    return found.map((item) => item.body);
  },

  async transaction() {
    const client = await connect();
    const aborted = client.begin();
    aborted.send({ destination: given.destination }).end('dropped');
    aborted.abort();
    const committed = client.begin();
    committed.send({ destination: given.destination }).end('kept');
    await new Promise((resolve, reject) => committed.commit({ onReceipt: resolve, onError: reject }));
    const found = await receive(client, { ack: 'auto' }, 1);
    client.disconnect();
    return found.map((item) => item.body);
  },

  async heartBeats() {
    const client = await connect({ 'heart-beat': '500,500' });
    await pause(2500);
    await send(client, {}, 'still here');
    const found = await receive(client, { ack: 'auto' }, 1);
    client.disconnect();
    return found.map((item) => item.body);
  },

  async dropped() {
    const client = await connect();
    await send(client, {}, 'x');
    await receive(client, { ack: 'client' }, 1);
    client.destroy(); // no DISCONNECT, no ACK
    const again = await connect();
    const found = await receive(again, { ack: 'auto' }, 1);
    again.disconnect();
    return found.map((item) => [item.body, item.headers.redelivered]);
  },
};

scenarios[scenario]().then(
  (result) => {
    console.log(JSON.stringify(result));
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
