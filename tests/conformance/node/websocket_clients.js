// Scenarios for tests/conformance/test_websocket.py: node websocket_clients.js SCENARIO JSON
// stompjs and rhea use node's own WebSocket, which is that of browsers; MQTT.js brings one. Prints one JSON value.
'use strict';

const mqtt = require('mqtt');
const rhea = require('rhea');
const { Client } = require('@stomp/stompjs');

const scenario = process.argv[2];
const given = JSON.parse(process.argv[3]);
const body = 'grüße '.repeat(given.times);

function settled(start) {
  return new Promise((resolve, reject) => start(resolve, (error) => reject(error instanceof Error ? error : new Error(String(error)))));
}

const scenarios = {
  amqp() {
    return settled((resolve, reject) => {
      const container = rhea.create_container();
      const connection = container.connect({
        connection_details: container.websocket_connect(WebSocket)(given.url, ['binary', 'AMQPWSB10', 'amqp']),
        username: given.user,
        password: given.password,
        reconnect: false,
      });
      container.on('disconnected', (context) => reject(context.error || 'disconnected'));
      container.on('connection_error', (context) => reject(context.connection.error));
      connection.open_receiver(given.address);
      connection.open_sender(given.address);
      container.once('sendable', (context) => context.sender.send({ body, durable: true }));
      container.once('message', (context) => {
        const found = context.message.body;
        container.removeAllListeners('disconnected');
        container.once('connection_close', () => resolve(found));
        connection.close();
      });
    });
  },

  stomp() {
    return settled((resolve, reject) => {
      let found;
      const client = new Client({
        brokerURL: given.url,
        connectHeaders: { login: given.user, passcode: given.password },
        reconnectDelay: 0,
        heartbeatIncoming: 200,
        heartbeatOutgoing: 200,
        forceBinaryWSFrames: given.binary,
        onConnect() {
          client.subscribe(given.address, (message) => {
            found = message.body;
            client.deactivate();
          });
          client.publish({ destination: given.address, body });
        },
        onStompError: (frame) => reject(frame.headers.message),
        onWebSocketError: (event) => reject(event.message || 'WebSocket error'),
        onWebSocketClose: (event) => (found === undefined ? reject(`closed ${event.code}`) : resolve(found)),
      });
      client.activate();
    });
  },

  mqtt() {
    return settled((resolve, reject) => {
      const client = mqtt.connect(given.url, {
        protocolVersion: given.version,
        protocolId: given.version === 3 ? 'MQIsdp' : 'MQTT',
        clientId: `js-${given.version}-${given.address}`,
        username: given.user,
        password: given.password,
        reconnectPeriod: 0,
      });
      client.on('error', reject);
      client.on('connect', () => {
        client.subscribe(`${given.address}/#`, { qos: 2 }, (error) => {
          if (error) {
            reject(error);
          }
          client.publish(`${given.address}/t`, body, { qos: 2 });
        });
      });
      client.on('message', (topic, payload) => client.end(false, {}, () => resolve(payload.toString())));
    });
  },
};

scenarios[scenario]()
  .then((found) => process.stdout.write(JSON.stringify(found), () => process.exit(0)))
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
